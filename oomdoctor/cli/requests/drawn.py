"""The pages and pictures that `show` was asked for."""

from __future__ import annotations

from oomdoctor.cli.options.verbs import ShowOptions
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.cli.streams.drawn import STDOUT, Drawn
from oomdoctor.render.charts import CHARTS

_FORMATS = {".html": "html", ".htm": "html", ".png": "png", ".svg": "svg"}


def drawn_of(options: ShowOptions) -> Drawn:
    """The files to write.

    Raises:
        OomDoctorError: an option is wrong, or does not go with the others (exit 2).
    """
    drawn = Drawn(options.html, options.png, options.svg, options.chart, options.rung)
    asked = drawn.html is not None or drawn.png is not None or drawn.svg is not None
    reader = Reader("show")
    reader.choice("--chart", options.chart, CHARTS)
    if options.chart != CHARTS[0] and drawn.png is None and drawn.svg is None:
        reader.fault("--chart", "needs --png FILE or --svg FILE")
    pictures = drawn.png is not None or drawn.svg is not None
    if options.rung is not None and drawn.html is None and not (pictures and drawn.chart == "step"):
        reader.fault("--rung", "needs --html FILE, or --chart step with --png FILE or --svg FILE")
    if options.list_ and asked:
        reader.fault("--list", "has no page and no charts")
    for name, file in (("html", drawn.html), ("png", drawn.png), ("svg", drawn.svg)):
        ending = "" if file is None else _FORMATS.get(file.suffix.lower(), name)
        if file is not None and ending != name:
            reader.fault(f"--{name}", f"{file} is the name of a file for --{ending}")
    if drawn.takes_stdout and (options.answer.json_ or options.answer.output_file is not None):
        reader.fault(str(STDOUT), "stdout takes one answer; give --html, --png or --svg a file")
    reader.check()
    return drawn
