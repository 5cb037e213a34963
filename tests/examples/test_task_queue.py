"""The task queue: six pictures resized, whatever happens to a worker."""

from pathlib import Path

from PIL import Image

from tests.examples.conftest import messages_in
from tests.examples.script import Script
from tests.support.wait import wait_until

QUEUE = "image_resize_queue_1"
WORKER = "task_queue/worker.py"
PRODUCER = "task_queue/producer.py"


def produce(url: str, place: Path) -> None:
    with Script(PRODUCER, "--images", place / "images", url=url, cwd=place) as producer:
        assert producer.wait_end() == 0, producer.lines
        assert producer.count("Message sent to queue") == 6


def assert_all_resized(place: Path) -> None:
    small = sorted((place / "resized").glob("*.jpg"))
    assert [picture.name for picture in small] == [f"photo-{n}-320.jpg" for n in range(1, 7)]
    for picture in small:
        with Image.open(picture) as image:
            assert image.size == (320, 240)


def test_two_workers_share_six_tasks(broker_url: str, tmp_path: Path) -> None:
    """Each task is done exactly once when nobody fails."""
    with (
        Script(WORKER, url=broker_url, cwd=tmp_path) as one,
        Script(WORKER, url=broker_url, cwd=tmp_path) as two,
    ):
        one.wait_for("Waiting for tasks")
        two.wait_for("Waiting for tasks")
        produce(broker_url, tmp_path)
        wait_until(lambda: one.count("Image resized") + two.count("Image resized") == 6, 30)
        for number in range(1, 7):
            done = f"Image resized: photo-{number}-320.jpg"
            assert one.count(done) + two.count(done) == 1
    assert_all_resized(tmp_path)
    wait_until(lambda: messages_in(broker_url, QUEUE) == 0, 30)  # the last ack is on its way


def test_tasks_wait_for_a_worker(broker_url: str, tmp_path: Path) -> None:
    """Tasks sent while no worker runs are kept, and taken in the order in which they were sent."""
    produce(broker_url, tmp_path)
    with Script(WORKER, url=broker_url, cwd=tmp_path) as worker:
        worker.wait_for("Image resized", count=6)
        received = [line.rsplit(" ", 1)[1] for line in worker.lines if "Received" in line]
    assert received == ["1", "2", "3", "4", "5", "6"]
    assert_all_resized(tmp_path)


def test_worker_killed_in_mid_task_loses_nothing(broker_url: str, tmp_path: Path) -> None:
    """SIGKILL with a task in hand: the next worker gets that task first, marked as redelivered, then the others."""
    produce(broker_url, tmp_path)
    with Script(WORKER, "--slow", 600, url=broker_url, cwd=tmp_path) as doomed:
        doomed.wait_for("Received Resize an image - 1")
        doomed.kill()
        assert doomed.count("Image resized") == 0
    with Script(WORKER, url=broker_url, cwd=tmp_path) as worker:
        worker.wait_for("Image resized", count=6)
        received = [line for line in worker.lines if "Received" in line]
    assert "once more" in received[0] and "Resize an image - 1 " in received[0]
    assert not any("once more" in line for line in received[1:])
    assert_all_resized(tmp_path)
    wait_until(lambda: messages_in(broker_url, QUEUE) == 0, 30)  # the last ack is on its way


def test_task_that_nobody_can_do_is_given_up(broker_url: str, tmp_path: Path) -> None:
    """A picture that is no picture is rejected once, and the worker goes on with the others."""
    images = tmp_path / "images"
    images.mkdir()
    (images / "photo-0.png").write_text("not a picture")
    produce(broker_url, tmp_path)
    with Script(WORKER, url=broker_url, cwd=tmp_path) as worker:
        worker.wait_for("Cannot do", count=6)
    wait_until(lambda: messages_in(broker_url, QUEUE) == 0, 30)  # the last ack is on its way
