"""The tools of these tests work on a plain kernel: what fails elsewhere is ours."""

import time


def test_a_cell_runs_and_its_output_is_read(open_notebook):
    notebook = open_notebook(["print('six times seven'); 6 * 7", "1 / 0"], "python3")
    assert notebook.run(0).splitlines()[0] == "six times seven"
    assert "42" in notebook.output_text(0)
    assert "ZeroDivisionError" in notebook.run(1)
    saved = notebook.save()
    assert saved.cells[0].outputs[0].text == "six times seven\n"


def test_the_stop_button_ends_a_sleep(open_notebook):
    notebook = open_notebook(
        ["import time\nprint('asleep', flush=True)\ntime.sleep(60)", "'alive'"],
        "python3",
    )
    notebook.start(0)
    notebook.output(0).get_by_text("asleep").wait_for()
    pressed_s = time.monotonic()
    notebook.press_stop()
    notebook.wait_done(0)
    assert time.monotonic() - pressed_s < 10
    assert "KeyboardInterrupt" in notebook.output_text(0)
    assert "alive" in notebook.run(1)


def test_restart_and_shutdown_reach_the_kernel(open_notebook):
    notebook = open_notebook(["import os; x = os.getpid(); x", "x"], "python3")
    first_pid = notebook.run(0)
    notebook.press_restart()
    notebook.wait_idle()
    assert "NameError" in notebook.run(1)
    assert notebook.run(0) != first_pid
    notebook.shut_down_kernel()
    notebook.wait_until(lambda: notebook.kernel() is None, "the kernel is gone")
