"""Write tests/golden/{slowfast,slowfast101,resnet3d,slowfast_caffe2}.json: outputs of PySlowFast's networks.

Needs torch, fvcore, PyYAML and a checkout of https://github.com/facebookresearch/SlowFast:

    python tests/parity/make_golden_slowfast.py CHECKOUT

Weights follow from PySlowFast's own names (`named_trees.py`). Packages that these networks import but do not use
(detectron2, pytorchvideo, simplejson) are stood in for.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from pathlib import Path
from unittest.mock import MagicMock

import torch
from named_trees import caffe2_state, describe, weight
from named_weights import named_clip

GOLDEN = Path(__file__).parents[1] / "golden"
ABSENT = (
    "detectron2",
    "detectron2.layers",
    "pytorchvideo",
    "pytorchvideo.layers",
    "pytorchvideo.layers.batch_norm",
    "pytorchvideo.layers.distributed",
    "pytorchvideo.layers.swish",
    "pytorchvideo.losses",
    "pytorchvideo.losses.soft_target_cross_entropy",
    "simplejson",
    "slowfast.models.contrastive",
    "slowfast.models.masked",
)
CLASSES = 7
GRADIENTS = (
    "s1.pathway1_stem.conv.weight",
    "s1_fuse.conv_f2s.weight",
    "s3.pathway0_res0.branch1.weight",
    "s4.pathway1_res2.branch2.a.weight",
    "s5.pathway0_res2.branch2.c_bn.weight",
    "head.projection.weight",
)


def build(config: str, *options: object) -> torch.nn.Module:
    from slowfast.config.defaults import get_cfg
    from slowfast.models.video_model_builder import ResNet, SlowFast

    cfg = get_cfg()
    cfg.merge_from_file(str(Path(sys.argv[1]) / "configs" / "Kinetics" / config))
    cfg.merge_from_list(["MODEL.NUM_CLASSES", CLASSES, "MODEL.DROPOUT_RATE", 0.0, *options])
    model = {"ResNet": ResNet, "SlowFast": SlowFast}[cfg.MODEL.MODEL_NAME](cfg)
    model.alpha = cfg.SLOWFAST.ALPHA if cfg.MODEL.MODEL_NAME == "SlowFast" else None
    return model


def fill(model: torch.nn.Module) -> torch.nn.Module:
    state = model.state_dict()
    model.load_state_dict({key: torch.from_numpy(weight(key, tuple(value.shape))) for key, value in state.items()})
    return model.eval()


def inputs(model: torch.nn.Module, clip: torch.Tensor) -> list[torch.Tensor]:
    """As `pack_pathway_output` of PySlowFast's `datasets/utils.py` does it."""
    if model.alpha is None:
        return [clip]
    count = clip.shape[2] // model.alpha
    indices = torch.linspace(0, clip.shape[2] - 1, count).long()
    return [torch.index_select(clip, 2, indices), clip]


def case(name: str, config: str, shape: tuple[int, ...], *options: object) -> dict:
    """Logits of the adaptive head; weights by the names in "keys"."""
    model = fill(build(config, "MULTIGRID.SHORT_CYCLE", True, "MODEL.HEAD_ACT", "none", *options))
    with torch.no_grad():
        logits = model(inputs(model, torch.from_numpy(named_clip(name, shape))))
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    print(name, logits.tolist(), sum(p.numel() for p in model.parameters()))
    return {"clip": name, "shape": shape, "logits": logits.tolist(), "keys": describe(shapes)}


def convolutional(name: str, config: str, shape: tuple[int, ...], frames: int, crop: int, *options: object) -> dict:
    """Probabilities of the convolutional head at a crop larger than the training crop."""
    model = fill(build(config, "DATA.NUM_FRAMES", frames, "DATA.TRAIN_CROP_SIZE", crop, *options))
    with torch.no_grad():
        probabilities = model(inputs(model, torch.from_numpy(named_clip(name, shape))))
    print(name, probabilities.tolist())
    return {
        "clip": name,
        "shape": shape,
        "num_frames": frames,
        "crop_size": crop,
        "probabilities": probabilities.tolist(),
    }


def training(name: str, config: str, shape: tuple[int, ...], *options: object) -> dict:
    """Logits and gradients with the batch's own statistics, in double precision: in single they differ by 0.1 %."""
    model = fill(build(config, "MULTIGRID.SHORT_CYCLE", True, *options)).train().double()
    logits = model(inputs(model, torch.from_numpy(named_clip(name, shape)).double()))
    torch.nn.functional.cross_entropy(logits, torch.arange(shape[0])).backward()
    norms = {key: p.grad.norm().item() for key, p in model.named_parameters()}
    print(name, logits.tolist(), {key: norms[key] for key in GRADIENTS})
    gradients = {key: norms[key] for key in GRADIENTS}
    return {"clip": name, "shape": shape, "logits": logits.tolist(), "gradient_norms": gradients}


def caffe2_names(model: torch.nn.Module) -> dict[str, list[int]]:
    """Caffe2's names and shapes for a model, found by trying PySlowFast's own conversion on every possible name."""
    from slowfast.utils.c2_model_loading import get_name_convert_func

    to_pytorch = get_name_convert_func()
    norm = ["s", "b", "rm", "riv"]
    candidates = ["pred_w", "pred_b", "t_pool1_subsample_w", *(f"t_pool1_subsample_bn_{x}" for x in norm)]
    for prefix in ("", "t_"):
        candidates += [f"{prefix}conv1_w", *(f"{prefix}res_conv1_bn_{x}" for x in norm)]
        for stage in range(2, 6):
            for index in range(6):
                block = f"{prefix}res{stage}_{index}_branch"
                for part in ("1", "2a", "2b", "2c"):
                    candidates += [f"{block}{part}_w", *(f"{block}{part}_bn_{x}" for x in norm)]
    for stage, index in ((2, 2), (3, 3), (4, 5)):
        fusion = f"t_res{stage}_{index}_branch2c_bn_subsample"
        candidates += [f"{fusion}_w", *(f"{fusion}_bn_{x}" for x in norm)]
    for stage in (3, 4):
        for index in (1, 3, 5):
            block = f"nonlocal_conv{stage}_{index}"
            candidates += [f"{block}_{part}_{x}" for part in ("theta", "phi", "g", "out") for x in "wb"]
            candidates += [f"{block}_bn_{x}" for x in norm]
    state = model.state_dict()
    named = {name: list(state[to_pytorch(name)].shape) for name in candidates if to_pytorch(name) in state}
    assert {to_pytorch(name) for name in named} == {key for key in state if "num_batches" not in key}
    return named


def caffe2(name: str, config: str, shape: tuple[int, ...], *options: object) -> dict:
    """Logits of a model that PySlowFast's `load_checkpoint` filled from a Caffe2 file of named weights."""
    from slowfast.utils.checkpoint import load_checkpoint

    model = build(config, "MULTIGRID.SHORT_CYCLE", True, "MODEL.HEAD_ACT", "none", *options)
    names = caffe2_names(model)
    blobs = caffe2_state(names)
    blobs |= {"lr": blobs["pred_b"][:1], "model_iter": blobs["pred_b"][:1], "conv1_w_momentum": blobs["conv1_w"]}
    with tempfile.NamedTemporaryFile(suffix=".pkl") as file:
        pickle.dump({"blobs": blobs}, file)
        file.flush()
        load_checkpoint(file.name, model, data_parallel=False, convert_from_caffe2=True)
    model.eval()
    with torch.no_grad():
        logits = model(inputs(model, torch.from_numpy(named_clip(name, shape))))
    print(name, logits.tolist())
    return {"clip": name, "shape": shape, "logits": logits.tolist(), "blobs": names}


def write(name: str, golden: dict) -> None:
    text = json.dumps({"torch": torch.__version__, **golden}, separators=(",", ":"))
    text = text.replace('"running_', '\n"running_')  # lines of a length that an editor can show
    (GOLDEN / f"{name}.json").write_text(text + "\n")
    print(f"{name}.json: {len(text)} bytes")


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    for name in ABSENT:
        sys.modules[name] = MagicMock()
    import slowfast.utils.checkpoint as checkpoint

    checkpoint.logger = MagicMock()
    quarter, eighth = ("RESNET.WIDTH_PER_GROUP", 16), ("RESNET.WIDTH_PER_GROUP", 8)
    clip = (1, 3, 16, 64, 48)
    write(
        "slowfast",
        {
            "8x8": case("slowfast_8x8", "SLOWFAST_8x8_R50.yaml", clip, *quarter),
            "4x16": case("slowfast_4x16", "SLOWFAST_4x16_R50.yaml", clip, *quarter, "SLOWFAST.BETA_INV", 4),
            "nl": case("slowfast_nl", "SLOWFAST_NLN_8x8_R50.yaml", clip, *quarter),
            "convolutional": convolutional(
                "slowfast_conv", "SLOWFAST_8x8_R50.yaml", (2, 3, 16, 96, 112), 16, 64, *quarter
            ),
            "training": training("slowfast_train", "SLOWFAST_8x8_R50.yaml", (2, 3, 16, 64, 64), *quarter),
        },
    )
    write(
        "slowfast101",
        {
            "50_50": case("slowfast_50_50", "c2/SLOWFAST_8x8_R101_50_50.yaml", (1, 3, 8, 64, 64), *eighth),
            "101_101": case("slowfast_101", "c2/SLOWFAST_8x8_R101_101_101.yaml", (1, 3, 8, 64, 64), *eighth),
        },
    )
    short = (1, 3, 8, 64, 48)
    write(
        "resnet3d",
        {
            "i3d": case("i3d", "I3D_8x8_R50.yaml", (1, 3, 4, 64, 64)),  # of the real width
            "i3d_nl": case("i3d_nl", "I3D_NLN_8x8_R50.yaml", short, *quarter),
            "slow": case("slow", "SLOW_8x8_R50.yaml", short, *quarter),
            "convolutional": convolutional("i3d_conv", "I3D_NLN_8x8_R50.yaml", (2, 3, 8, 96, 128), 8, 64, *quarter),
        },
    )
    write(
        "slowfast_caffe2",
        {
            "slowfast_nl": caffe2("c2_slowfast", "SLOWFAST_NLN_8x8_R50.yaml", (1, 3, 8, 64, 64), *eighth),
            "i3d_nl": caffe2("c2_i3d", "I3D_NLN_8x8_R50.yaml", (1, 3, 4, 64, 64), *eighth),
        },
    )


if __name__ == "__main__":
    main()
