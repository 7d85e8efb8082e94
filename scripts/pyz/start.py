"""The start of oomdoctor.pyz, which is its `__main__.py`.

It unpacks the archive once, because workers and watched commands need the package as files. Where
no folder can be written, the archive runs as it is; then only what needs no second process works.

Any Python 3 can read this file, so that an old one can say what is missing.
"""

import os
import sys

OLDEST = (3, 11)
NEWEST_TRIED = 20
DIGEST = "digest.txt"


def main():
    """Find a new enough Python and a folder, and run the command line."""
    archive = os.path.dirname(os.path.abspath(__file__))
    if sys.version_info < OLDEST:
        start_newer(archive)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != archive]
    sys.path.insert(0, unpacked(archive) or archive)
    from oomdoctor.__main__ import main as run

    run()


def start_newer(archive):
    """Run the archive with the newest Python on the PATH; never returns."""
    import shutil

    for minor in range(NEWEST_TRIED, OLDEST[1] - 1, -1):
        python = shutil.which("python3.%d" % minor)
        # What a version manager puts on the PATH may name a version that is not there.
        if python and os.system('"%s" -c "" >/dev/null 2>&1' % python) == 0:
            os.execv(python, [python, archive] + sys.argv[1:])
    sys.stderr.write(
        "error: oomdoctor needs Python 3.11 or newer, and this is %d.%d; no newer one is on the "
        "PATH\nhint:  load one, such as `module load python`, or run /path/to/python3.11 %s\n"
        % (sys.version_info[0], sys.version_info[1], archive)
    )
    sys.exit(5)


def unpacked(archive):
    """The folder with the contents of the archive; None if no folder can be written."""
    import zipfile

    with zipfile.ZipFile(archive) as file:
        try:
            return kept(file)
        except OSError:  # read-only, full, or no home
            pass
        try:
            return temporary(file)
        except OSError:
            return None


def kept(file):
    """The folder in the cache, made by whichever process is first.

    A new folder gets its name when it is complete. A name is never taken from another process,
    and on any file system one rename wins.
    """
    import shutil
    import tempfile

    digest = file.read(DIGEST).decode()
    folder = os.path.join(cache(), "oomdoctor", "pyz", digest)
    if is_complete(file, folder):
        return folder
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    own = tempfile.mkdtemp(prefix=".new-", dir=parent)
    try:
        file.extractall(own)
        if not taken(own, folder) and not is_complete(file, folder):
            # A clean-up by age has removed files.
            os.rename(folder, os.path.join(own, "damaged"))
            if not taken(own, folder) and not is_complete(file, folder):
                raise OSError("no complete folder in the cache")
    finally:
        shutil.rmtree(own, ignore_errors=True)
        shutil.rmtree(os.path.join(folder, "damaged"), ignore_errors=True)
    return folder


def taken(own, folder):
    """Whether the folder got its name; False if another process was faster."""
    try:
        os.rename(own, folder)
    except OSError:
        return False
    return True


def temporary(file):
    """A folder that is removed at the end."""
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="oomdoctor-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file.extractall(folder)
    return folder


def is_complete(file, folder):
    """Whether every file of the archive is in the folder, with its size."""
    try:
        return all(
            os.path.getsize(os.path.join(folder, member.filename)) == member.file_size
            for member in file.infolist()
        )
    except OSError:
        return False


def cache():
    """`XDG_CACHE_HOME`, or `.cache` in the home folder.

    Raises:
        OSError: neither exists.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return given
    home = os.path.expanduser("~")
    if not os.path.isdir(home):
        raise OSError("no home folder")
    return os.path.join(home, ".cache")


if __name__ == "__main__":
    main()
