//go:build linux

package apart

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/wire"
)

// An adversary plays against three nodes on this machine, each a process, beside clients of another tenant.
type foe struct {
	*cluster
	r      *rand.Rand
	long   time.Duration // 0: the short form
	honest []*client
	wg     sync.WaitGroup
	stop   context.CancelFunc
	mu     sync.Mutex
	wrong  []error
}

// small are sizes of a node that has little, so that who passes a cap shows soon.
const small = "store: {io_bytes: 96MiB, block_bytes: 64KiB}\n" +
	"limits: {memory_bytes: 64MiB, connections: 300, drain: 2s}\n"

// newFoe reads how long and by which seed; nodes are begun by grow.
func newFoe(t *testing.T, env string) *foe {
	seed := drawn.Seed(t)
	f := &foe{cluster: beginCluster(t, nil, []string{""}), r: rand.New(rand.NewPCG(seed, 5))}
	f.sizes, f.drives = small, "256MiB"
	if v := os.Getenv(env); v != "" {
		var err error
		f.long, err = time.ParseDuration(v)
		require.NoError(t, err)
	}
	return f
}

// lasts is how long it plays.
func (f *foe) lasts(short time.Duration) time.Duration { return max(short, f.long) }

// credential is a line of settings that lets somebody in.
func credential(name, of, token, rights, more string) string {
	return fmt.Sprintf("  - {name: %s, tenant: %q, rights: [%s], token_sha256: %x%s}\n", name, of, rights,
		sha256.Sum256([]byte(token)), more)
}

func (f *foe) secret(role string) string {
	b, err := os.ReadFile(f.token(role))
	require.NoError(f.t, err)
	return string(b)
}

// begin has honest clients keep books until end.
func (f *foe) begin(seed uint64) {
	for i, n := range f.nodes {
		name := fmt.Sprint("c", i)
		j := job{Name: name, Addr: n.addr(), Token: f.secret("engine"), Seed: seed + uint64(i)}
		c, err := j.open()
		require.NoError(f.t, err)
		f.honest = append(f.honest, c)
	}
	for _, c := range f.honest { // each knows the map and its namespaces
		require.NoError(f.t, c.check())
	}
	f.resume()
	f.t.Cleanup(func() {
		f.pause()
		for _, c := range f.honest {
			_ = c.st.Close()
		}
	})
}

// pause has no honest client in a call, and resume has them go on.
func (f *foe) pause() {
	f.stop()
	f.wg.Wait()
}

func (f *foe) resume() {
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	for _, c := range f.honest {
		f.wg.Go(func() {
			for ctx.Err() == nil {
				if err := c.step(); err != nil {
					f.is(fmt.Errorf("%s: %w", c.Name, err))
					return
				}
				c.counts["calls"]++
				rest(ctx, time.Duration(c.r.IntN(20))*time.Millisecond)
			}
		})
	}
}

// rest waits, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// is notes something that must not be; no error is none.
func (f *foe) is(wrong error) {
	if wrong != nil {
		f.mu.Lock()
		f.wrong = append(f.wrong, wrong)
		f.mu.Unlock()
	}
}

// well requires that nothing was wrong so far, and that all nodes run.
func (f *foe) well() {
	f.t.Helper()
	for _, n := range f.nodes {
		f.is(n.alive())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	require.NoError(f.t, errors.Join(f.wrong...))
}

// tellAll tells every honest client something while none is in a call.
func (f *foe) tellAll(what string) {
	f.t.Helper()
	f.pause()
	for _, c := range f.honest {
		require.NoError(f.t, c.told(what), "%s, told to %s", c.Name, what)
	}
	f.resume()
}

// failed are the honest calls that had no success, of all.
func (f *foe) failed() (failed, calls int) {
	for _, c := range f.honest {
		for what, n := range c.counts {
			switch {
			case what == "calls":
				calls += n
			case what != "blocks put" && what != "blocks read" && what != "deletions" && what != "durable blocks missed":
				failed += n
			}
		}
		f.t.Logf("%s: %s", c.Name, c.said())
	}
	return failed, calls
}

// asked asks a node as an operator does.
func (n *node) asked(ctx context.Context, call string, in any, out any) error {
	token, err := os.ReadFile(n.c.token("operator"))
	if err != nil {
		return err
	}
	st, err := wire.Dial(ctx, wire.Options{Addr: n.addr(), Token: string(token), Conns: 1})
	if err != nil {
		return err
	}
	defer st.Close()
	b, err := json.Marshal(in)
	if err == nil {
		b, err = st.Admin(ctx, call, b)
	}
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	return err
}

// status is the cluster as a node sees it.
func (n *node) status(ctx context.Context) (s consensus.Status, err error) {
	err = n.asked(ctx, "cluster", struct{}{}, &s)
	return s, err
}

// agreedMap is the map that a node tells clients.
func (n *node) agreedMap(ctx context.Context) (*clustermap.Map, error) {
	token, err := os.ReadFile(n.c.token("engine"))
	if err != nil {
		return nil, err
	}
	st, err := wire.Dial(ctx, wire.Options{Addr: n.addr(), Token: string(token), Conns: 1})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	b, err := st.ClusterMap(ctx)
	if err != nil {
		return nil, err
	}
	return clustermap.Parse(b)
}

// holds is what a node's process has, as it says itself.
func (n *node) holds(ctx context.Context) (map[string]float64, error) {
	q, err := http.NewRequestWithContext(ctx, "GET", "http://"+n.at[2]+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(n.c.token("operator"))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Authorization", "Bearer "+string(token))
	web := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := web.Do(q)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics of %s: %s", n.name, a.Status)
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(a.Body)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		name, value := line[:max(at, 0)], line[at+1:]
		if x, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = x
		}
	}
	return out, lines.Err()
}

// within looks at something again and again until it is nil, no longer than patience.
func (f *foe) within(what string, look func(ctx context.Context) error) {
	f.t.Helper()
	var last string
	f.eventually(what, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		err := look(ctx)
		last = fmt.Sprint(err)
		return err == nil
	}, &last)
}

// open begins a client in this process.
func (j *job) open() (*client, error) {
	c := &client{job: j, r: rand.New(rand.NewPCG(j.Seed, 3)), scopes: map[string]skep.Scope{}, book: newBook(j.Name),
		counts: map[string]int{}}
	var err error
	c.st, err = replication.Connect(wire.Options{Addr: j.Addr, Token: j.Token, Name: j.Name, Log: quiet})
	return c, err
}
