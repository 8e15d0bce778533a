"""Names of files that hold images."""

SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
ENCODED = "an encoded image; add `DecodeImageTransform(size=(224, 224))` before"
