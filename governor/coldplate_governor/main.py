"""``coldplate-governor``: `run` (the default) governs, `sense` is a sensor agent, `lever` sets one device's clock.

`replay` decides a recording again, `bench` runs the law on the twin.
"""

import sys

PROGRAM = "coldplate-governor"


def main(argv: list[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    if args and args[0] == "sense":
        from coldplate_governor.sense import main as sense  # an agent stays small: it needs none of the rest

        sense(args[1:])
        return
    if args and args[0] == "replay":
        from coldplate_governor.explain.replay_command import main as replay

        replay(args[1:])
        return
    if args and args[0] == "bench":
        from coldplate_governor.bench.cli import main as bench

        bench(args[1:])
        return
    if args and args[0] == "lever":
        from coldplate_governor.levers.child import main as lever

        lever(args[1:])
        return
    if args and args[0] == "run":
        args = args[1:]
    from coldplate.parent import end_with_supervisor
    from coldplate_governor.governor import main as govern

    end_with_supervisor()

    govern(args)


if __name__ == "__main__":
    main()
