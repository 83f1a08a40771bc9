"""What Pillow or OpenCV take for a picture, in microseconds as JSON. Runs in an environment that has them: pictures.py FILE RUNS pillow|opencv, or pictures.py FILE make."""

import io
import json
import pathlib
import statistics
import sys
import time

import numpy

MEAN, DEVIATION = numpy.array([0.485, 0.456, 0.406], numpy.float32), numpy.array([0.229, 0.224, 0.225], numpy.float32)


def make(path):
    """A picture of 1920 x 1080 with smooth parts, edges and noise, so that its file has as many bytes as a photograph's."""
    from PIL import Image

    y, x = numpy.mgrid[0:1080, 0:1920].astype(numpy.float32)
    waves = [127 + 80 * numpy.sin(x / (90 + 20 * c)) * numpy.cos(y / (70 - 9 * c)) + 25 * ((x + (c + 1) * y) // 160 % 2) for c in range(3)]
    noise = numpy.random.default_rng(1).normal(0, 6, (1080, 1920, 1))
    pixels = numpy.clip(numpy.stack(waves, 2) + noise, 0, 255).astype(numpy.uint8)
    Image.fromarray(pixels).save(path, quality=90, subsampling=2)


def timed(runs, work):
    work()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


def normalised(pixels):
    """As one writes it with numpy, without needless copies."""
    values = pixels.astype(numpy.float32)
    values *= numpy.float32(1 / 255)
    values -= MEAN
    values /= DEVIATION
    return numpy.ascontiguousarray(values.transpose(2, 0, 1))


def pillow(data, runs):
    import PIL
    from PIL import Image

    decode = lambda: Image.open(io.BytesIO(data)).convert("RGB")  # noqa: E731
    picture = decode()
    picture.load()
    small = picture.resize((224, 224), Image.BILINEAR)
    return {
        "version": PIL.__version__,
        "decode": timed(runs, lambda: decode().load()),
        "resize": timed(runs, lambda: picture.resize((224, 224), Image.BILINEAR)),
        "normalise": timed(runs, lambda: normalised(numpy.asarray(small))),
    }


def opencv(data, runs):
    import cv2

    cv2.setNumThreads(1)
    file = numpy.frombuffer(data, numpy.uint8)
    picture = cv2.imdecode(file, cv2.IMREAD_COLOR)
    small = cv2.resize(picture, (224, 224))
    return {
        "version": cv2.__version__,
        "decode": timed(runs, lambda: cv2.imdecode(file, cv2.IMREAD_COLOR)),
        "resize": timed(runs, lambda: cv2.resize(picture, (224, 224), interpolation=cv2.INTER_AREA)),
        "resize_nearby": timed(runs, lambda: cv2.resize(picture, (224, 224), interpolation=cv2.INTER_LINEAR)),
        "normalise": timed(runs, lambda: normalised(small)),
        "normalise_blob": timed(runs, lambda: cv2.dnn.blobFromImage(small, 1 / 255, (224, 224), (124, 116, 104), swapRB=True)),
    }


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    if sys.argv[2] == "make":
        make(path)
    else:
        print(json.dumps({"pillow": pillow, "opencv": opencv}[sys.argv[3]](path.read_bytes(), int(sys.argv[2]))))
