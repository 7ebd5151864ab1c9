package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/self"
)

// TestMain is also the demo's first process, which does what its first argument says.
func TestMain(m *testing.M) {
	if os.Getenv(self.Env) == "" {
		os.Exit(m.Run())
	}
	say := func(b []byte) {
		if _, err := os.Stdout.Write(b); err != nil {
			os.Exit(4)
		}
	}
	step := func(n int) {
		b, err := json.Marshal(step{Request: n, Blocks: 2, Hit: 1})
		if err != nil {
			panic(err)
		}
		say(append(b, '\n'))
	}
	switch os.Args[1] {
	case "steps": // for ever
		for n := 1; ; n++ {
			step(n)
		}
	case "a long line": // and others after it, for ever
		step(1)
		for b := bytes.Repeat([]byte{'x'}, maxLine+1); ; b = []byte("{}\n") {
			say(b)
		}
	case "no step":
		step(1)
		say([]byte("{\"Request\":"))
		fmt.Fprintln(os.Stderr, "out of memory")
		os.Exit(3)
	case "few steps":
		step(1)
		step(2)
		fmt.Fprintln(os.Stderr, "no more")
		os.Exit(3)
	}
}

// Whatever becomes of the first process, it has ended when its half of the demo has, and the
// error says why.
func TestTheFirstProcessEnds(t *testing.T) {
	t.Parallel()
	errKill := errors.New("not permitted")
	for _, tt := range []struct {
		does   string
		kill   error
		is     error
		says   []string
		killed bool
	}{
		{does: "steps", killed: true},
		{does: "steps", kill: errKill, is: errKill, says: []string{"cannot be killed"}},
		{does: "a long line", is: bufio.ErrTooLong, says: []string{"a step of more than 1048576 bytes"}},
		{does: "a long line", kill: errKill, is: bufio.ErrTooLong},
		{does: "no step", says: []string{"what is no step", "exit status 3", "out of memory"}},
		{does: "few steps", says: []string{"ended by itself", "exit status 3", "no more"}},
	} {
		t.Run(fmt.Sprintf("%s, kill %v", tt.does, tt.kill), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // kills it, so that a wait that is none fails
			defer cancel()
			var process *os.Process
			o := Options{Requests: 100, Within: time.Hour, Self: []string{os.Args[0], tt.does}}
			o.kill = func(p *os.Process) error {
				process = p
				if tt.kill != nil {
					return tt.kill
				}
				return p.Kill()
			}
			o.ensureDefaults()
			var res Result
			err := o.firstHalf(ctx, t.TempDir(), time.Now(), &res)
			require.NoError(t, ctx.Err(), "it hung")
			if process != nil {
				require.ErrorIs(t, process.Signal(syscall.Signal(0)), os.ErrProcessDone)
			}
			if tt.killed {
				require.NoError(t, err)
				require.GreaterOrEqual(t, res.KilledAt, o.killAt())
				require.Len(t, res.steps, res.KilledAt)
				return
			}
			require.Error(t, err)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			for _, s := range tt.says {
				require.ErrorContains(t, err, s)
			}
		})
	}
}
