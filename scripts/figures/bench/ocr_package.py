"""Draws 20 pictures with text and reads them with the package rapidocr-onnxruntime: ocr_package.py FOLDER ROUNDS

Pictures go into the folder. What the package says of each, and how long it took on one thread in each of so many rounds, is
written to standard output as JSON. Runs in the environment of scripts/requirements-ocr.txt; the font is the one that Pillow brings.
"""

import json
import pathlib
import sys
import time

from PIL import Image, ImageDraw, ImageFont


def page(size, lines, ink="black", paper="white", turned=0.0):
    """Lines of (x, y, height, text)."""
    picture = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(picture)
    for x, y, height, text in lines:
        draw.text((x, y), text, fill=ink, font=ImageFont.load_default(height))
    return picture.rotate(turned, Image.Resampling.BICUBIC, expand=True, fillcolor=paper) if turned else picture


def column(height, texts, left=30, top=30):
    return [(left, top + number * height * 2, height, text) for number, text in enumerate(texts)]


def hanging():
    """An upright line, and one that is upside down."""
    picture = page((680, 260), [(30, 30, 40, "This line stands upright")])
    picture.paste(page((620, 70), [(10, 8, 40, "This line hangs upside down")]).rotate(180), (30, 140))
    return picture


def table():
    cells = [["Item", "Pieces", "Price"], ["Apples", "12", "3.60"], ["Bread", "2", "7.80"], ["Cheese", "1", "11.25"], ["Total", "15", "22.65"]]
    return page((760, 420), [(40 + 250 * column, 30 + 76 * row, 34, text) for row, texts in enumerate(cells) for column, text in enumerate(texts)])


def pictures():
    prose = [
        "A model server answers on time", "or it says at once that it cannot", "Every request has a deadline", "Batches are made of what waits",
        "Weights are loaded before they", "are needed and leave when they", "are not needed any more", "The scheduler knows it all",
    ]
    yield "one-line", page((480, 120), [(30, 30, 44, "Hello world 2026")])
    yield "three-lines", page((640, 320), column(40, ["The quick brown fox", "jumps over the lazy dog", "and sleeps at noon"]))
    yield "eight-lines", page((800, 640), column(34, prose))
    yield "small-letters", page((420, 260), column(17, prose[:5]))
    yield "large-letters", page((1000, 420), column(96, ["Departures", "Platform 9"], top=20))
    yield "mixed-sizes", page((760, 400), [(30, 20, 72, "Invoice"), (30, 130, 36, "Number 4711"), (30, 210, 24, "Due on 31 December 2026"), (30, 280, 18, "Thank you for your order")])
    yield "numbers", page((560, 330), column(40, ["0123456789", "3.14159265", "1,234,567.89"]))
    yield "signs", page((720, 330), column(38, ["name@example.org", "50% off (today only)", "A + B = C; x < y"]))
    yield "light-on-dark", page((620, 240), column(40, ["White on black", "reads just as well"]), ink="white", paper="black")
    yield "colours", page((620, 240), column(40, ["Yellow on blue", "is hard on the eyes"]), ink=(250, 230, 60), paper=(20, 40, 150))
    yield "pale", page((620, 240), column(40, ["Grey on lighter grey", "little contrast"]), ink=(120, 120, 120), paper=(205, 205, 205))
    yield "turned-3", page((640, 300), column(40, ["Turned a little", "to the left"]), turned=3)
    yield "turned-minus-5", page((640, 300), column(40, ["Turned a little", "to the right"]), turned=-5)
    yield "turned-12", page((640, 300), column(44, ["Turned further"]), turned=12)
    yield "upside-down", hanging()
    yield "upright", page((640, 90), [(30, 20, 40, "Read from below")]).rotate(90, expand=True)
    yield "empty", page((500, 300), [])
    yield "two-columns", page((900, 360), column(32, ["Left one", "Left two", "Left three"]) + column(32, ["Right one", "Right two", "Right three"], left=500))
    yield "table", table()
    yield "wide", page((1600, 260), [(40, 60, 44, "One long line of text that runs across the whole width of a wide picture")])


def main():
    folder, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, picture in pictures():
        files.append(folder / f"{name}.png")
        picture.save(files[-1])
    from rapidocr_onnxruntime import RapidOCR

    read = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)
    said, milliseconds = {}, []
    for number in range(rounds + 1):
        for file in files:
            data = file.read_bytes()
            began = time.perf_counter()
            lines, _ = read(data)
            if number > 0:  # the first round warms up
                milliseconds.append((time.perf_counter() - began) * 1e3)
            said[file.stem] = [{"text": text, "score": score, "box": box} for box, text, score in lines or []]
    json.dump({"said": said, "milliseconds": milliseconds}, sys.stdout)


if __name__ == "__main__":
    main()
