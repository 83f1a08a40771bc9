"""What built-in steps take for a picture, beside Pillow and OpenCV in the same rounds."""

import json
import pathlib
import statistics
import subprocess
import venv

from figures.common import BENCH, ENGINE_LAB, ROOT, Failed, Figure, step

# OpenCV wants a numpy below 2.3. One thread each: a server has other requests for its other cores. Pillow-SIMD, a fork for x86, has had no release since Pillow 9.5 and has to be compiled.
PACKAGES = ["numpy==2.2.6", "pillow==12.0.0", "opencv-python-headless==4.12.0.88"]
PICTURES = pathlib.Path(__file__).with_name("pictures.py")


def run(quick):
    folder = BENCH / "steps"
    python, picture = folder / "venv" / "bin" / "python", folder / "photo.jpg"
    with step("Pillow and OpenCV in an environment of their own"):
        if not python.exists():
            venv.create(folder / "venv", with_pip=True)
        said([python, "-m", "pip", "install", "--quiet", *PACKAGES])
        if not picture.exists():
            said([python, PICTURES, picture, "make"])
    with step("building"):
        said(["cargo", "build", "--release", "--quiet", "-p", "engine-lab"])
    rounds, runs = (1, 5) if quick else (7, 15)
    found = []
    for number in range(rounds):
        with step(f"round {number + 1} of {rounds}"):
            found.append({
                "ours": json.loads(said([ENGINE_LAB, "steps", picture, runs])),
                "pillow": json.loads(said([python, PICTURES, picture, runs, "pillow"])),
                "opencv": json.loads(said([python, PICTURES, picture, runs, "opencv"])),
            })

    def median(who, what):
        return statistics.median(each[who][what] for each in found)

    def ratio(who, what, theirs=None):
        return statistics.median(each["ours"][what] / each[who][theirs or what] for each in found)

    versions = f"Pillow {found[0]['pillow']['version']}, OpenCV {found[0]['opencv']['version']}"
    return [
        Figure("decode a JPEG file of 1920 x 1080", median("ours", "decode") / 1000, "ms", note=versions),
        Figure("decode: ours / Pillow", ratio("pillow", "decode"), ""),
        Figure("decode: ours / OpenCV", ratio("opencv", "decode"), ""),
        Figure("resize to 224 x 224, of all pixels", median("ours", "resize") / 1000, "ms"),
        Figure("resize of all pixels: ours / Pillow", ratio("pillow", "resize"), "", note="bilinear"),
        Figure("resize of all pixels: ours / OpenCV", ratio("opencv", "resize"), "", note="INTER_AREA"),
        Figure("resize to 224 x 224, of the pixels nearby", median("ours", "resize_nearby") / 1000, "ms"),
        Figure("resize of pixels nearby: ours / OpenCV", ratio("opencv", "resize_nearby"), "", note="INTER_LINEAR"),
        Figure("normalise, channels first", median("ours", "normalise"), "us"),
        Figure("normalise: ours / numpy", ratio("pillow", "normalise"), ""),
        Figure("normalise: ours / OpenCV's blobFromImage", ratio("opencv", "normalise", "normalise_blob"), "", note="which has no deviations"),
    ], {"rounds": found}


def said(command):
    ran = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if ran.returncode != 0:
        raise Failed(f"{command[0]} failed: {ran.stderr[-500:]}")
    return ran.stdout
