package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command"
)

// opened is a directory that a process has open as a store's: answers gives it the answer to a line, and "" where it says
// nothing.
func opened(t *testing.T, answers func(line string) string) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "skep") // the path of a socket is short
	require.NoError(t, err)
	l, err := net.Listen("unix", filepath.Join(dir, "admin.sock"))
	require.NoError(t, err)
	var wait sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wait.Wait()
		os.RemoveAll(dir)
	})
	wait.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			wait.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				if line, err := r.ReadString('\n'); err == nil {
					if text := answers(line); text != "" {
						_, _ = c.Write([]byte(text))
						return
					}
				}
				_, _ = r.ReadByte() // until who asks hangs up
			})
		}
	})
	return dir
}

// A store whose process has it open and says nothing is not taken for one that nobody has open.
func TestASilentServerIsOne(t *testing.T) {
	t.Parallel()
	dir := opened(t, func(string) string { return "" })
	for _, args := range [][]string{{"compact"}, {"scrub"}, {"namespace", "delete", "t", "n", "--yes"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			said := skepRun(t, append(args, "--dir", dir)...)
			assert.Equal(t, command.TryAgain, said.Code, "%v: %s", args, said.Stderr)
			assert.Contains(t, said.Stderr, "does not answer", args)
		})
	}
}

// Who interrupts what a store in use does is told whether it goes on, and how to look. A drive that was added is said to
// be, where what was to follow failed.
func TestWhatIsInterruptedOfAStoreInUse(t *testing.T) {
	t.Parallel()
	for hangs, says := range map[string]string{
		"compact":          "next: what is moved is moved",
		"device drain 0":   "next: what was begun goes on in the store that is in use: skep device list --dir ",
		"device add /none": "next: /none was added, and is not to be added again",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		dir := opened(t, func(line string) string {
			switch {
			case strings.HasPrefix(line, "options"):
				return "{}"
			case strings.Contains(line, `"action":"add"`):
				return `{"moved":{}}`
			}
			cancel()
			return ""
		})
		var out, errs bytes.Buffer
		code := cli.Program.Main(ctx, append(strings.Fields(hangs), "--dir", dir), strings.NewReader(""), &out, &errs)
		assert.Equal(t, command.Interrupted, code, hangs)
		assert.Contains(t, errs.String(), says)
	}
}
