//go:build linux

package apart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep/tools/internal/member"
)

// One node of three has no descriptors, or no room on the disk of its catalog and of what it agreed to, and is given
// both back. Meanwhile the others agree on changes of the map and serve, and the node says what it lacks; afterwards it
// is well, and nothing that was acknowledged is lost. make starved runs it for long.
func TestStarvedNode(t *testing.T) {
	t.Parallel()
	s := &starved{foe: newFoe(t, "SKEP_STARVED_TIME")}
	s.prepare = func(i int, n *node) {
		if i == 2 {
			s.node = n
			s.disk()
		}
	}
	s.grow(3, "never")
	s.begin(s.r.Uint64())
	wants := []func() func(){s.descriptors}
	if s.full != "" {
		wants = append(wants, s.disks)
	}
	for i, end := 0, time.Now().Add(s.long); i < len(wants) || time.Now().Before(end); i++ {
		want := wants[i%len(wants)]
		if i >= len(wants) {
			want = wants[s.r.IntN(len(wants))]
		}
		s.tellAll(toldStorm)
		giveBack := want()
		s.changes(1 + i%2)
		most := max(time.Second, min(s.long/10, 20*time.Second))
		s.goesOn(500*time.Millisecond + time.Duration(s.r.Int64N(int64(most))))
		s.changes(2 - i%2)
		giveBack()
		s.whole()
		s.within("the node's store is well", func(ctx context.Context) error {
			st, err := s.node.stats(ctx)
			if err == nil && st.State != "ok" {
				err = fmt.Errorf("it is %s", st.State)
			}
			return err
		})
		if s.long > 0 {
			s.goesOn(doubt)
			s.tellAll(toldCalm)
		}
		s.tellAll(toldCheck)
		s.well()
	}
	s.pause()
	s.failed()
}

// starved is a foe of one node.
type starved struct {
	*foe
	node *node
	full string // a file that fills its disk; "": the disk is not the test's own
}

// disk has the node's directory be a file system of its own, without its devices, where one may be mounted.
func (s *starved) disk() {
	dir := s.node.dir()
	require.NoError(s.t, os.MkdirAll(dir, 0o700))
	mount := exec.Command("mount", "-t", "tmpfs", "-o", "size=192m,mode=700", "skep-starved", dir)
	if out, err := mount.CombinedOutput(); err != nil {
		s.t.Logf("NOT PLAYED: a disk that fills up: %v: %s", err, out)
		return
	}
	s.full = filepath.Join(dir, "filler")
	s.t.Cleanup(func() {
		s.node.kill()
		require.NoError(s.t, exec.Command("umount", "-l", dir).Run())
	})
	s.node.files = []string{"--device", dir + "-0", "--device", dir + "-1"}
}

// changes has the others agree on a map with another weight of the first node.
func (s *starved) changes(weight int) {
	s.t.Helper()
	s.within("the map is changed", func(ctx context.Context) error {
		return s.nodes[0].asked(ctx, "cluster set", member.Change{Name: "a", Weight: weight}, new(member.Changed))
	})
}

// noticed waits until the node says that something is wrong, or does not answer.
func (s *starved) noticed() {
	s.t.Helper()
	var last string
	s.eventually("it is noticed", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		st, err := s.node.stats(ctx)
		last = fmt.Sprint(st.State, err)
		return err != nil || st.State != "ok"
	}, &last)
	s.t.Logf("the node says: %s", last)
}

// descriptors takes all: a limit below what is open stops every opening.
func (s *starved) descriptors() (giveBack func()) {
	pid := s.node.cmd.Process.Pid
	var was unix.Rlimit
	low := unix.Rlimit{Cur: 3}
	require.NoError(s.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	low.Max = was.Max
	require.NoError(s.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &low, nil))
	s.noticed()
	return func() { require.NoError(s.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)) }
}

// disks fills the disk to its last byte. Where the node cannot write what it agreed to, it takes no part until it is
// started again, and says so.
func (s *starved) disks() (giveBack func()) {
	f, err := os.Create(s.full)
	require.NoError(s.t, err)
	for _, n := range []int{1 << 20, 4096, 1} {
		b := make([]byte, n)
		for err = nil; err == nil; {
			_, err = f.Write(b)
		}
		require.ErrorIs(s.t, err, unix.ENOSPC)
	}
	many := 3
	if s.long > 0 {
		many = s.r.IntN(60) // its log has taken some room before
	}
	for i := range many {
		s.changes(3 + i%2)
	}
	s.noticed()
	return func() {
		require.NoError(s.t, errors.Join(f.Close(), os.Remove(s.full)))
		st, err := s.node.status(context.Background())
		s.t.Logf("of the agreement it says: %q %v", st.Error, err)
		if st.Error != "" {
			require.NoError(s.t, errors.Join(s.node.stop(), s.node.start()))
		}
	}
}
