"""Settings: every source, every mistake named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from infra.config import Settings, api_keys, environment, load
from infra.errors import ConfigError
from infra.labels import is_label

pytestmark = pytest.mark.unit

part = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


def write(folder: Path, text: str) -> Path:
    file = folder / "corral.toml"
    file.write_text(text)
    return file


def test_without_any_source_everything_is_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load({})
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_the_environment_goes_over_the_file_and_each_source_is_known(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nhost = "::1"\n')
    loaded = load({"CORRAL_PORT": "2", "OTHER": "x"}, file)
    assert (loaded.settings.port, loaded.settings.host) == (2, "::1")
    assert (loaded.sources["port"], loaded.sources["host"]) == ("CORRAL_PORT", str(file))


def test_the_file_is_found_by_its_variable_or_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "port = 3\n")
    assert load({"CORRAL_CONFIG": str(file)}).settings.port == 3
    monkeypatch.chdir(tmp_path)
    assert load({}).settings.port == 3


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"CORRAL_QUEUE_LIMT": "1"}, "CORRAL_QUEUE_LIMT: unknown setting `queue_limt`; did you mean `queue_limit`?"),
        ({"CORRAL_XYZZY": "1"}, "CORRAL_XYZZY: unknown setting `xyzzy`"),
        ({"CORRAL_PORT": "many"}, "CORRAL_PORT: `port`: input should be a valid integer"),
        ({"CORRAL_PORT": "70000"}, "CORRAL_PORT: `port`: input should be less than or equal to 65535"),
        ({"CORRAL_SLOTS": "0"}, "CORRAL_SLOTS: `slots`: input should be greater than 0"),
        ({"CORRAL_DRAIN_S": "inf"}, "CORRAL_DRAIN_S: `drain_s`: input should be a finite number"),
        ({"CORRAL_LOAD_BOUND": "inf"}, "CORRAL_LOAD_BOUND: `load_bound`: input should be a finite number"),
        ({"CORRAL_LOG_LEVEL": "loud"}, "CORRAL_LOG_LEVEL: `log_level`: input should be 'debug', 'info'"),
        ({"CORRAL_GPU": "first"}, "CORRAL_GPU: `gpu`:"),
        ({"CORRAL_WORKER_NAME": "a b"}, "[A-Za-z0-9]"),
        (
            {"CORRAL_LEASE_RENEW_S": "5"},
            "CORRAL_LEASE_RENEW_S: `lease_renew_s`: must be at most half of lease_lifetime_s (5)",
        ),
        ({"CORRAL_AGENT_WEIGHTS": "me"}, "CORRAL_AGENT_WEIGHTS: `agent_weights`: must be of the form name=2,name=0.5"),
        ({"CORRAL_KEY_WEIGHTS": "me=0"}, "CORRAL_KEY_WEIGHTS: `key_weights`: me: input should be greater than 0"),
        (
            {"CORRAL_AGENT_WEIGHTS": "a=1,B=x"},
            "CORRAL_AGENT_WEIGHTS: `agent_weights`: B: input should be a valid number",
        ),
        ({"CORRAL_AGENT_WEIGHTS": "A=1, b=2,A =3"}, "CORRAL_AGENT_WEIGHTS: `agent_weights`: A: stands twice"),
        ({"CORRAL_KEY_WEIGHTS": "{x}=1\n{x}=1"}, "CORRAL_KEY_WEIGHTS: `key_weights`: {x}: stands twice"),
        (
            {"CORRAL_TRACE_ENDPOINT": "localhost:4318"},
            "CORRAL_TRACE_ENDPOINT: `trace_endpoint`: must be an http(s) address, as http://127.0.0.1:4318",
        ),
        ({"CORRAL_TRACE_ENDPOINT": "http://:1"}, "`trace_endpoint`: must be an http(s) address"),
        ({"CORRAL_TRACE_ENDPOINT": "http://a/#b"}, "`trace_endpoint`: must be an http(s) address"),
        ({"CORRAL_TRACE_ENDPOINT": "http://a:b"}, "`trace_endpoint`: must be an http(s) address"),
        ({"CORRAL_LEASE_LIFETIME_S": "1"}, "`lease_renew_s`: must be at most half of lease_lifetime_s (1)"),
    ],
)
def test_a_mistake_in_the_environment_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "unknown setting `prot`; did you mean `port`?"),
        ("port = -1", "`port`: input should be greater than or equal to 0"),
        ("[api]\nport = 1", "unknown setting `api`"),
        ("port = ", "corral.toml: "),
        ("[agent_weights]\na = 1\nb = 'much'", "`agent_weights`: b: input should be a valid number"),
        ("[key_weights]\na = 1\na = 2", "corral.toml: "),
    ],
)
def test_a_mistake_in_the_file_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load({}, file)
    assert caught.value.message.startswith(f"{file}: ")
    assert words in caught.value.message


def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such file"):
        load({"CORRAL_CONFIG": str(tmp_path / "nowhere.toml")})


def test_a_wrong_secret_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        load({"CORRAL_PORT": "hush"})
    assert "hush" not in caught.value.message


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "port": st.integers(0, 65535),
            "host": part,
            "slots": st.integers(1, 256),
            "threads": st.integers(0, 64),
            "drain_s": st.floats(0.001, 1e6),
            "load_bound": st.floats(1, 100),
            "default_level": st.integers(0, 9),
            "agent_weights": st.dictionaries(part, st.floats(0.01, 1000), max_size=3),
            "worker_name": part,
            "gpu": st.sampled_from(["", "none", "0", "0,1"]),
            "engine_args": st.text(st.characters(codec="utf-8", exclude_characters="\0")),
            "api_keys": st.builds(SecretStr, st.text(st.characters(codec="ascii"))),
            "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
            "data_dir": part.map(lambda name: Path("/tmp") / name),  # noqa: S108  # only a name, nothing is written
        },
    )
)
def test_another_process_loads_exactly_the_settings_that_were_handed_on(values: dict[str, object]) -> None:
    settings = Settings(**values)
    assert load(environment(settings)).settings == settings


def test_weights_are_read_from_a_text_and_from_a_table(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent_weights]\nreview = 2\n")
    assert load({}, file).settings.agent_weights == {"review": 2}
    assert load({"CORRAL_AGENT_WEIGHTS": "review=2, a=b = 0.5"}).settings.agent_weights == {"review": 2, "a=b": 0.5}


def test_changes_go_over_what_is_handed_on() -> None:
    handed = environment(Settings(), port=1, worker_name="w9")
    assert (handed["CORRAL_PORT"], handed["CORRAL_WORKER_NAME"]) == ("1", "w9")


@given(st.dictionaries(part, part, max_size=4), st.sampled_from([",", "\n", " , ", ",\n"]))
def test_keys_are_read_in_every_form(keys: dict[str, str], separator: str) -> None:
    text = separator.join(f"{name} : {key}" for name, key in keys.items())
    assert api_keys(Settings(api_keys=SecretStr(text))) == keys


def test_a_key_may_hold_colons() -> None:
    assert api_keys(Settings(api_keys=SecretStr("me:a:b"))) == {"me": "a:b"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("secret", "entry 1 is not of the form name:key"),
        ("a:1,:2", "entry 2 is not of the form name:key"),
        ("a:1,b:", "entry 2 is not of the form name:key"),
        ("a:1,a:2", "the name `a` stands twice"),
        ("a:1,b:secr\u00e9t", "the key of entry 2 may hold printable ASCII only: headers carry nothing else alike"),
        ("a:sec\tret", "the key of entry 1 may hold printable ASCII only: headers carry nothing else alike"),
        ("a\x1b[2J:secret", "the name of entry 1 must be at most 128 printable characters"),
        ("a" * 129 + ":secret", "the name of entry 1 must be at most 128 printable characters"),
    ],
)
def test_a_wrong_key_entry_is_named_and_not_shown(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        api_keys(Settings(api_keys=SecretStr(text)))
    assert caught.value.message == f"CORRAL_API_KEYS: {words}"
    assert "secret" not in caught.value.message


@given(st.text(max_size=4), st.text(max_size=4))
def test_every_key_that_is_taken_can_be_sent_and_every_name_is_a_label(name: str, key: str) -> None:
    try:
        taken = api_keys(Settings(api_keys=SecretStr(f"{name}:{key}")))
    except ConfigError:
        return
    for label, secret in taken.items():
        assert secret.encode("latin-1") == secret.encode() == secret.strip().encode()
        assert is_label(label)


def test_secrets_do_not_show_when_settings_are_printed() -> None:
    assert "hush" not in repr(Settings(api_keys=SecretStr("a:hush"), flower_password=SecretStr("a:hush")))


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@given(st.integers(1, 2_000_000), st.integers(-1, 3_000_000))
def test_the_reserve_never_takes_more_than_half_of_a_window(context: int, reserve: int) -> None:
    kept = Settings(overflow_reserve_tokens=reserve).reserve_tokens(context)
    assert 0 <= kept <= context // 2


def test_warm_files_are_listed_by_commas_or_lines_and_relative_ones_lie_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = (tmp_path / "a.md", Path("/b/c.json"))
    assert load({"CORRAL_WARM": " a.md, /b/c.json ,"}).settings.warm == wanted
    assert load({"CORRAL_WARM": "a.md\n/b/c.json\n"}).settings.warm == wanted
    assert load({"CORRAL_WARM": ""}).settings.warm == ()
    assert load({"CORRAL_WARM": "a,b.md\n"}).settings.warm == (tmp_path / "a,b.md",)


def test_warm_files_of_the_settings_file_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, 'warm = ["a.md", "/b/c.json", "~/d.txt"]\n')
    monkeypatch.setenv("HOME", "/home/me")
    assert load({}, file).settings.warm == (tmp_path / "a.md", Path("/b/c.json"), Path("/home/me/d.txt"))


def test_warm_files_pass_to_another_process_as_they_are(tmp_path: Path) -> None:
    settings = Settings(warm=(tmp_path / "a,b.md", tmp_path / "c.json"))
    assert load(environment(settings)).settings == settings


def test_warm_must_be_a_list_of_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`warm`: must be a list of files"):
        load({}, write(tmp_path, "warm = [1, 2]"))
