"""Ships `tf_amp.pth` at the top of site-packages; all else stands in pyproject.toml.

No metadata and no logic of the package. Python reads `.pth` files at the top of
site-packages only, and setuptools has no declarative way to place a file there.
"""

from setuptools import Command, setup
from setuptools.command.build import build

PTH = "tf_amp.pth"


class BuildPth(Command):
    """A step of `build` (the `SubCommand` protocol of setuptools) that places PTH.

    Case 1, wheel: the root of `build_lib` becomes the root of the wheel.
    Case 2, editable wheel: packages stay where they are and `build_lib` is thrown away;
      the root of the wheel is `install_lib`.
    """

    def initialize_options(self) -> None:
        self.editable_mode = False
        self.build_lib = ""

    def finalize_options(self) -> None:
        self.build_lib = self.get_finalized_command("build").build_lib

    def run(self) -> None:
        root = self.build_lib  # Case 1.
        if self.editable_mode:
            root = self.get_finalized_command("install").install_lib  # Case 2.
        self.mkpath(root)
        self.copy_file(PTH, root)

    def get_source_files(self) -> list[str]:
        return [PTH]

    def get_outputs(self) -> list[str]:
        return [] if self.editable_mode else [f"{self.build_lib}/{PTH}"]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    """`build` with the step above."""

    sub_commands = [*build.sub_commands, ("build_pth", None)]


setup(cmdclass={"build": Build, "build_pth": BuildPth})
