"""Text in pictures, in one call: three real models with steps between them. `make bench ARGS=ocr` holds it against the package that the models come from."""

import signal
import struct
import subprocess
import zlib

import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import conftest

REPOSITORY = conftest.ROOT / ".cache" / "ocr"

# Letters of five by seven pixels: no font has to be there.
LETTERS = {
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "D": "11110 10001 10001 10001 10001 10001 11110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "N": "10001 11001 10101 10011 10001 10001 10001",
    "O": "01110 10001 10001 10001 10001 10001 01110",
    "R": "11110 10001 10001 11110 10100 10010 10001",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "W": "10001 10001 10001 10101 10101 11011 10001",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "7": "11111 00001 00010 00100 01000 01000 01000",
}
# So many pixels of a picture for each of a letter.
SIZE = 6


def line(text):
    """How much ink is where, 0 to 1."""
    cells = [numpy.array([list(map(int, row)) for row in LETTERS[letter].split()]) for letter in text]
    ink = numpy.concatenate([numpy.pad(cell, ((1, 1), (0, 2))) for cell in cells], axis=1)
    ink = numpy.pad(numpy.kron(ink, numpy.ones((SIZE, SIZE))), 2 * SIZE)
    # Edges are soft, as in photographs.
    for axis in (0, 1):
        ink = sum(numpy.roll(ink, step, axis) for step in range(-2, 3)) / 5
    return ink


def page(*lines):
    width = max(each.shape[1] for each in lines) + 80
    rows = [numpy.pad(each, ((15, 15), (40, width - 40 - each.shape[1]))) for each in lines]
    return numpy.pad(numpy.concatenate(rows), ((40, 40), (0, 0)))


def png(ink):
    grey = (255 - 255 * ink).round().astype(numpy.uint8)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in grey)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def reader():
    server = conftest.start(REPOSITORY)
    yield server
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0


def read(server, file, protocol="http"):
    """Texts, scores and boxes."""
    module = getattr(tritonclient, protocol)
    given = module.InferInput("file", [1], "BYTES")
    given.set_data_from_numpy(numpy.array([file], dtype=object))
    # It may take a while where other tests run beside it.
    options = {"connection_timeout": 120, "network_timeout": 120} if protocol == "http" else {}
    with module.InferenceServerClient(getattr(server, protocol), **options) as client:
        answer = client.infer("ocr", [given])
        return [text.decode() for text in answer.as_numpy("texts")], answer.as_numpy("scores"), answer.as_numpy("boxes")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_lines_come_from_top_to_bottom_also_where_one_is_upside_down(reader, protocol):
    lines = [line("HELLO"), line("WORLD"), line("4217"), line("ANOTHER")[::-1, ::-1]]
    texts, scores, boxes = read(reader, png(page(*lines)), protocol)
    assert texts == ["HELLO", "WORLD", "4217", "ANOTHER"]
    assert (scores > 0.8).all() and (scores <= 1).all(), scores
    assert boxes.shape == (4, 4, 2)
    # Each box is around the ink of its line, and ends before the next one's begins.
    top = 40
    for box, each in zip(boxes, lines):
        rows = numpy.flatnonzero(each.max(axis=1) > 0.5) + top + 15
        upper, lower = box[:, 1].min(), box[:, 1].max()
        assert top <= upper <= rows[0] and rows[-1] <= lower <= top + each.shape[0] + 30, (box, rows[[0, -1]])
        top += each.shape[0] + 30


def test_a_line_that_stands_on_its_end_is_read(reader):
    texts, _, _ = read(reader, png(numpy.rot90(page(line("HELLO")), -1)))
    assert texts == ["HELLO"]


def test_a_picture_without_text_has_no_lines(reader):
    texts, scores, boxes = read(reader, png(numpy.zeros((120, 160))))
    assert (texts, scores.shape, boxes.shape) == ([], (0,), (0, 4, 2))


def test_each_line_of_a_picture_is_a_row_of_the_recogniser(reader):
    def rows():
        return reader.metric('nv_inference_count{model="text-recognise",version="1"}')

    before = rows()
    assert len(read(reader, png(page(*[line("WORLD")] * 6)))[0]) == 6
    reader.until("all rows are counted", lambda: rows() - before == 6)


@pytest.mark.parametrize("file, why", [(b"GIF89a", "neither JPEG nor PNG"), (png(page(line("HELLO")))[:200], "PNG file can't be read")])
def test_what_is_no_picture_is_a_sentence(reader, file, why):
    with pytest.raises(InferenceServerException, match=why):
        read(reader, file)


def test_it_can_be_drawn():
    drawn = subprocess.run([conftest.binary(), "endpoint", "show", REPOSITORY / "ocr"], capture_output=True, text=True)
    assert drawn.returncode == 0, drawn.stderr
    for part in ("text-detect", "text-turned", "text-recognise", "text_boxes", "ctc_decode"):
        assert part in drawn.stdout
