"""How every process reads its settings: flags over ``COLDPLATE_*`` variables over a TOML file over defaults.

A process declares one subclass of ``ProcessSettings``; ``load_settings`` fills it or ends the process with exit code 2
and one line that names the setting, the value and what was expected.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from coldplate.logs import LogFormat, LogLevel
from coldplate.stderr import write_stderr

EXIT_BAD_SETTINGS = 2


class ProcessSettings(BaseSettings):
    """What all processes share."""

    model_config = SettingsConfigDict(
        env_prefix="COLDPLATE_",
        env_nested_delimiter="__",
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_enforce_required=False,
    )

    log_level: LogLevel = Field("info", description="Least level that is logged.")
    log_format: LogFormat = Field("console", description="Log lines for a console, or as JSON.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml_file = settings_cls.model_config.get("toml_file")
        toml = [TomlConfigSettingsSource(settings_cls)] if toml_file else []
        return (init_settings, env_settings, *toml)


S = TypeVar("S", bound=ProcessSettings)


def load_settings(cls: type[S], program: str, argv: list[str] | None = None) -> S:
    """Read settings for ``program`` from ``argv`` (default: the process's own), the environment and ``--config FILE``.

    Ends the process with code 2 and a line on standard error when they are not usable, and with 0 after ``--help``.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    config = _take_config(args, program)
    lists = _take_lists(cls, args, program)
    bound = type(cls.__name__, (cls,), {"model_config": SettingsConfigDict(toml_file=config), "__doc__": cls.__doc__})
    try:
        return bound(_cli_settings_source=CliSettingsSource(bound, cli_prog_name=program, cli_parse_args=args), **lists)  # type: ignore[no-any-return]
    except ValidationError as error:
        fail(program, "; ".join(_describe(item) for item in error.errors()))
    except (SettingsError, tomllib.TOMLDecodeError) as error:
        fail(program, f"{config or 'settings'}: {error}")


def fail(program: str, message: str) -> NoReturn:
    """End the process: a setting or a file it names is unusable."""
    write_stderr(f"{program}: {message}\n".encode(errors="backslashreplace"))
    raise SystemExit(EXIT_BAD_SETTINGS)


def _take_config(args: list[str], program: str) -> Path | None:
    for at, arg in enumerate(args):
        if arg == "--config" or arg.startswith("--config="):
            value = arg.partition("=")[2] if "=" in arg else (args[at + 1] if at + 1 < len(args) else "")
            del args[at : at + (1 if "=" in arg else 2)]
            if not Path(value).is_file():
                fail(program, f"--config {value!r}: no such file")
            return Path(value)
    return None


def _take_lists(cls: type[ProcessSettings], args: list[str], program: str) -> dict[str, list[str]]:
    """Take the repeatable flags out of ``args``: each value as it stands, where the parser would split it at commas."""
    names = {
        f"--{name.replace('_', '-')}": name for name, field in cls.model_fields.items() if field.annotation == list[str]
    }
    taken: dict[str, list[str]] = {}
    rest: list[str] = []
    remaining = iter(args)
    for arg in remaining:
        flag, equals, value = arg.partition("=")
        if flag not in names:
            rest.append(arg)
            continue
        given = value if equals else next(remaining, None)
        if given is None:
            fail(program, f"{flag}: expected a value")
        taken.setdefault(names[flag], []).append(given)
    args[:] = rest
    return taken


def _describe(item: Any) -> str:
    name = ".".join(str(part).replace("_", "-") for part in item["loc"]) or "settings"
    shown = "" if item["type"] == "missing" else f" (got {str(item['input'])[:80]!r})"
    return f"{name}: {item['msg'].removeprefix('Value error, ')}{shown}"
