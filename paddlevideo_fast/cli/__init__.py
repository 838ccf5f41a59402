"""What each command does; the scripts in tools/ only call these."""
