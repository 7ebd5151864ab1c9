//go:build linux

package apart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/wire"
)

// clockEnv makes the test binary a server whose machine's clock is off by what a file says, in nanoseconds.
const clockEnv = "SKEP_APART_CLOCK"

// serveByClock takes its settings from the environment.
func serveByClock(file string) int {
	var off atomic.Int64
	look := func() {
		if b, err := os.ReadFile(file); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				off.Store(n)
			}
		}
	}
	look()
	go func() { // ends with the process
		for range time.Tick(20 * time.Millisecond) {
			look()
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	set := map[string]string{"file-devices": "2"}
	list := strings.Split(os.Getenv(flagsEnv), "\n")
	for i := 0; i+1 < len(list); i += 2 {
		set[strings.TrimPrefix(list[i], "--")] = list[i+1]
	}
	config := set["config"]
	delete(set, "config")
	level := set["log"]
	delete(set, "log")
	c, err := serve.Load(config, nil, set)
	if err == nil {
		c.Log.Level = level
		err = serve.Run(ctx, c, serve.Options{Version: "apart", Log: os.Stderr,
			Wall: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const flagsEnv = "SKEP_APART_FLAGS"

// clocks are nodes whose clocks are set.
type clocks struct {
	*foe
	off  [3]time.Duration
	lead [3]time.Duration // the latest that the clock was ahead at a start: ends of tokens do not go back beyond it
}

func (c *clocks) file(i int) string { return filepath.Join(c.dir, fmt.Sprint("clock-", i)) }

// set sets a node's clock.
func (c *clocks) set(i int, off time.Duration) {
	c.off[i] = off
	tmp := c.file(i) + ".new"
	require.NoError(c.t, os.WriteFile(tmp, []byte(strconv.FormatInt(int64(off), 10)), 0o600))
	require.NoError(c.t, os.Rename(tmp, c.file(i)))
}

// some is a time by which a clock is off: seconds to more than a year, either way.
func (c *clocks) some() time.Duration {
	most := []time.Duration{3 * time.Second, time.Hour, 14 * time.Hour, 400 * 24 * time.Hour}[c.r.IntN(4)]
	return time.Duration(c.r.Int64N(int64(2*most))) - most
}

const shortToken = "short-token-0123456789abcdef"

// Three nodes have clocks that differ by hours and are set while they run, are paused for longer than the lease by
// which they serve, and killed. Nothing that was deleted is found, what was acknowledged as durable is, a token opens
// where the node's clock, as far as it has known it, is before its end and nowhere else, a lease does not end early,
// and all end. make clock runs it for long.
func TestClocksOfACluster(t *testing.T) {
	t.Parallel()
	c := &clocks{foe: newFoe(t, "SKEP_CLOCK_TIME")}
	ends := time.Now().Add(30 * time.Minute)
	c.creds = credential("ends", tenant, shortToken, "read, write", ", expires: "+ends.UTC().Format(time.RFC3339))
	for i := range c.off {
		c.set(i, c.some())
	}
	c.prepare = func(i int, n *node) {
		c.lead[i] = max(c.lead[i], c.off[i])
		n.more = []string{clockEnv + "=" + c.file(i), flagsEnv + "=" + strings.Join(n.flags(), "\n")}
	}
	c.grow(3, "10s")
	c.begin(c.r.Uint64())
	for end := time.Now().Add(c.long); ; {
		c.storms()
		c.tokens(t.Context(), ends)
		c.lease(t.Context())
		c.well()
		if !time.Now().Before(end) {
			break
		}
	}
	c.pause()
	c.failed()
	for _, n := range c.nodes {
		c.within("the leases of "+n.name+" end", func(ctx context.Context) error {
			st, err := n.stats(ctx)
			if err == nil && st.Leases > 0 {
				err = fmt.Errorf("%d leases", st.Leases)
			}
			return err
		})
	}
}

func (n *node) stats(ctx context.Context) (out skep.Stats, err error) {
	token, err := os.ReadFile(n.c.token("operator"))
	if err != nil {
		return out, err
	}
	st, err := wire.Dial(ctx, wire.Options{Addr: n.addr(), Token: string(token), Conns: 1})
	if err != nil {
		return out, err
	}
	defer st.Close()
	return st.Stats(ctx)
}

// storms has things go wrong, makes all well again, and has the clients look at all.
func (c *clocks) storms() {
	c.t.Helper()
	c.tellAll(toldStorm)
	for range 1 + c.r.IntN(3) {
		i := c.r.IntN(len(c.nodes))
		n := c.nodes[i]
		paused := 5100 * time.Millisecond // the lease is half of ten seconds
		if c.long > 0 {
			paused = time.Duration(c.r.Int64N(int64(20 * time.Second)))
		}
		switch what := c.r.IntN(4); {
		case what == 0 && c.long > 0:
			c.t.Logf("%s is killed", n.name)
			n.kill()
			c.set(i, c.some())
			c.goesOn(time.Duration(c.r.IntN(3000)) * time.Millisecond)
			c.lead[i] = max(c.lead[i], c.off[i])
			require.NoError(c.t, n.start())
		case what < 3:
			c.t.Logf("%s is paused for %v", n.name, paused)
			require.NoError(c.t, n.cmd.Process.Signal(syscall.SIGSTOP))
			c.goesOn(paused / 2)
			c.set(i, c.some())
			c.goesOn(paused / 2)
			require.NoError(c.t, n.cmd.Process.Signal(syscall.SIGCONT))
		}
		for i := range c.nodes {
			c.set(i, c.some())
		}
		c.goesOn(time.Duration(c.r.IntN(1000)) * time.Millisecond)
		if c.long == 0 {
			break
		}
	}
	c.whole()
	if c.long > 0 {
		c.goesOn(doubt)
		c.tellAll(toldCalm)
		c.goesOn(2 * time.Second)
	}
	c.tellAll(toldCheck)
	c.well()
}

// goesOn lets that time pass, or until something is wrong.
func (f *foe) goesOn(d time.Duration) {
	f.t.Helper()
	rest(f.t.(*testing.T).Context(), d)
	f.well()
}

// tokens tries one that ends: each node goes by its own clock, or by what it has known, if that is later.
func (c *clocks) tokens(ctx context.Context, ends time.Time) {
	c.t.Helper()
	for i, n := range c.nodes {
		if left := time.Until(ends) - c.lead[i]; left.Abs() < 5*time.Minute {
			continue // a node notes each minute what it knows
		}
		for _, off := range []time.Duration{time.Hour, -time.Hour, 0} {
			c.set(i, off)
			c.within(fmt.Sprintf("node %s goes by a clock that is off by %v", n.name, off), func(within context.Context) error {
				st, err := wire.Dial(within, wire.Options{Addr: n.addr(), Token: shortToken, Conns: 1, Strict: true, Log: quiet})
				if err == nil {
					_ = st.Close()
				}
				switch want := time.Now().Add(max(off, c.lead[i])).Before(ends); {
				case want && err != nil:
					return err
				case !want && err == nil:
					return errors.New("an ended token opens")
				case !want && !errors.Is(err, skep.Denied):
					return err
				}
				return nil
			})
		}
	}
}

// lease has one by all nodes while their clocks are set: it does not end early, and it ends.
func (c *clocks) lease(ctx context.Context) {
	c.t.Helper()
	x := c.honest[0].book[0]
	var found skep.LookupResult
	c.pause()
	defer c.resume()
	st := c.honest[0].st
	c.within("a lease", func(ctx context.Context) (err error) {
		scope, err := c.honest[0].scope(ctx, x.Space)
		if err == nil {
			found, err = st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: x.keys, Lease: time.Minute})
		}
		return err
	})
	if found.Blocks == 0 {
		return
	}
	for i := range c.nodes {
		c.set(i, c.some())
	}
	rest(ctx, 50*time.Millisecond) // they look each 20 ms
	left := time.Until(found.Lease.Until)
	require.Positive(c.t, left)
	require.LessOrEqual(c.t, left, time.Minute)
	_, err := st.Renew(ctx, found.Lease.ID, time.Second) // nobody gives it back
	require.NoError(c.t, err, "a lease of a minute, renewed %v before its end", left)
}
