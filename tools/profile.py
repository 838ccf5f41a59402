"""Show where the time of a training goes: python tools/profile.py -c CONFIG [-o key=value ...] [--paced]"""

import importlib
import sys
from pathlib import Path

# Python puts the folder of a script first on its path, and this file bears the name of a module of the standard
# library, which cProfile imports. The folder goes, and who asks for that module from another tool is given it.
_FOLDER = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _FOLDER]

if __name__ == "__main__":
    sys.path.insert(0, str(_FOLDER.parent))  # this checkout, installed or not
    from paddlevideo_fast.cli.profile import main

    main()
else:
    sys.modules.pop(__name__)
    importlib.import_module(__name__)
