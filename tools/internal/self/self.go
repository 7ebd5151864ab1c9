// Package self starts the running program once more, as a process of its own: a benchmark has such processes
// measured, and the demo has one killed. It starts other programs as well, so that nothing of them is left.
package self

import (
	"context"
	"os"
	"os/exec"
	"time"
)

// Env makes a program that is not skep, such as a test, run as skep when it is set.
const Env = "SKEP_RUN_AS_COMMAND"

// Command prepares a child process that runs program with args, or, where program is empty, what this process
// runs. It ends with its parent.
func Command(ctx context.Context, program []string, args ...string) (*exec.Cmd, error) {
	if len(program) == 0 {
		path, err := os.Executable()
		if err != nil {
			return nil, err
		}
		program = []string{path}
	}
	cmd := exec.CommandContext(ctx, program[0], append(append([]string{}, program[1:]...), args...)...)
	cmd.Env = append(os.Environ(), Env+"=1")
	cmd.SysProcAttr = EndWithParent()
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// Other prepares another program. Where ctx ends, it is killed with all that it has started: a child that goes on
// would hold its output, and who waits for that would wait for the child. It ends with its parent.
func Other(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	asGroup(cmd)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
