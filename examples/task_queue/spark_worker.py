"""The same work as worker.py's, as a function for `kvitto pipeline work`: see README.md."""

from pathlib import Path

from worker import resize

from kvitto.pipeline.work import Message

OUT = Path("resized")


def task(message: Message) -> dict[str, str]:
    """Resizes the picture of one task; the answer says where the small one is."""
    wanted = message.json()
    OUT.mkdir(exist_ok=True)
    target = resize(Path(wanted["picture"]), int(wanted["width"]), OUT)
    return {"task": wanted["task"], "picture": str(target)}
