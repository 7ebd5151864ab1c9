package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// SelfEnv makes a program that is not skep, such as a test, run as skep when it is set:
// benchmarks and the demo start processes of their own to measure and to kill.
const SelfEnv = "SKEP_RUN_AS_COMMAND"

// Self is the command that runs this program as skep.
func Self() ([]string, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{path}, nil
}

// SelfCommand prepares a child process that runs this program as skep with args. It
// ends with its parent.
func SelfCommand(ctx context.Context, self []string, args ...string) (*exec.Cmd, error) {
	if len(self) == 0 {
		var err error
		if self, err = Self(); err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, self[0], append(append([]string{}, self[1:]...), args...)...)
	cmd.Env = append(os.Environ(), SelfEnv+"=1")
	cmd.SysProcAttr = endWithParent()
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// runSelf runs a hidden bench command and reads its result.
func runSelf(ctx context.Context, self []string, into any, args ...string) error {
	cmd, err := SelfCommand(ctx, self, append(append([]string{"bench"}, args...), "--json")...)
	if err != nil {
		return err
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("bench %s: %w: %s", args[0], err, firstLine(stderr.String()))
	}
	return json.Unmarshal(out.Bytes(), into)
}
