"""Which workers `corral up` starts, and what each is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import config
from infra.cli import plan
from infra.config import Loaded
from infra.errors import ConfigError

pytestmark = pytest.mark.unit

CARDS = st.lists(st.integers(0, 31).map(str), min_size=1, max_size=16, unique=True)


def loaded(**values: str) -> Loaded:
    return config.load({f"CORRAL_{key.upper()}": value for key, value in values.items()})


@given(cards=CARDS, count=st.integers(1, 16))
def test_every_card_goes_to_exactly_one_worker_when_there_are_enough(cards: list[str], count: int) -> None:
    dealt = plan.assign("", cards, count)
    assert len(dealt) == count
    if count <= len(cards):
        assert ",".join(dealt) == ",".join(cards)
        sizes = {len(share.split(",")) for share in dealt}
        assert max(sizes) - min(sizes) <= 1
    else:
        assert set(dealt) == set(cards)


@given(cards=CARDS)
def test_automatic_workers_are_one_for_each_card(cards: list[str]) -> None:
    assert [worker.gpu for worker in plan.workers(loaded(), "auto", cards, 8)] == cards


def test_a_list_of_cards_is_one_engine_unless_more_workers_are_asked_for() -> None:
    settings = loaded(gpu="0,1")
    assert [worker.gpu for worker in plan.workers(settings, "auto", ("0", "1", "2"), 8)] == ["0,1"]
    assert [worker.gpu for worker in plan.workers(settings, "2", ("0", "1", "2"), 8)] == ["0", "1"]


def test_without_cards_there_is_one_worker_on_the_processor() -> None:
    assert plan.workers(loaded(), "auto", (), 8) == (plan.WorkerPlan("w1", "", 7),)
    assert plan.workers(loaded(gpu="none"), "auto", ("0",), 8)[0].gpu == "none"


@given(cores=st.integers(1, 256), count=st.integers(1, 64))
def test_threads_leave_a_core_free_and_are_never_none(cores: int, count: int) -> None:
    threads = [worker.threads for worker in plan.workers(loaded(), str(count), (), cores)]
    assert min(threads) >= 1
    assert sum(threads) <= max(count, cores - 1)


def test_each_worker_has_a_port_for_its_metrics_or_none_has() -> None:
    for port, ports in (("0", [0, 0, 0]), ("9100", [9100, 9101, 9102])):
        settings = loaded(metrics_port=port)
        staff = plan.workers(settings, "3", (), 8)
        assert [plan.worker_settings(settings.settings, one).metrics_port for one in staff] == ports


def test_threads_that_are_set_are_kept() -> None:
    assert plan.workers(loaded(threads="3"), "2", (), 64)[1].threads == 3


def test_names_count_up_and_say_the_machine_on_a_shared_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "big_box.example.org")
    assert [worker.name for worker in plan.workers(loaded(), "2", (), 4)] == ["w1", "w2"]
    shared = loaded(redis_url="redis://elsewhere/0")
    assert [worker.name for worker in plan.workers(shared, "2", (), 4)] == ["big-box-w1", "big-box-w2"]
    named = loaded(worker_name="attic")
    assert [worker.name for worker in plan.workers(named, "1", (), 4)] == ["attic"]
    assert [worker.name for worker in plan.workers(named, "2", (), 4)] == ["attic1", "attic2"]


@pytest.mark.parametrize("wanted", ["0", "-1", "many", "65", "1.5", ""])
def test_a_number_of_workers_that_is_none_is_named(wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"--workers .*must be a number from 1 to 64, or auto"):
        plan.workers(loaded(), wanted, (), 4)
