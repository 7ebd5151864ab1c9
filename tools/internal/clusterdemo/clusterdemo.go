package clusterdemo

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/internal/chat"
	"github.com/skepkv/skep/tools/internal/replay"
	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/tools/internal/trace"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// Options of Run. Zero fields take their defaults.
type Options struct {
	Dir      string // where the nodes' stores are made; the system's temporary directory
	Requests int    // 300
	Replicas int    // nodes that have each block; 1
	Seed     uint64 // of the workload
	Self     []string
	Note     func(format string, args ...any)
}

// blockBytes is the payload of a block, recent how many requests' chains are looked for.
const (
	blockBytes = 64 << 10
	recent     = 40
)

// Result of the demo.
type Result struct {
	Nodes    []Node `json:"nodes"`             // each node before the kill
	Requests int    `json:"requests"`          // of the workload
	Killed   string `json:"killed"`            // the node that was killed
	KilledAt int    `json:"killed_at_request"` // last request before it
	BackAt   int    `json:"back_at_request"`   // last request before the node was started again
	// blocks found of the last 40 requests before the kill, but for the last block of each
	Found    Thrice `json:"recent_blocks_found"`
	HitRatio Ratios `json:"hit_ratio"` // blocks restored ÷ blocks asked for
	// not put, since their node, or that of a block before them, was away (blocks)
	Declined       int64    `json:"declined"`
	BytesPut       int64    `json:"bytes_put"`       // payload committed (bytes)
	BytesRestored  int64    `json:"bytes_restored"`  // payload restored, all of it compared (bytes)
	WrongBytes     int64    `json:"wrong_bytes"`     // restored bytes that are not what was put (bytes)
	BrokenPromises int64    `json:"broken_promises"` // leased blocks that were not delivered (blocks)
	ReturnSeconds  float64  `json:"return_seconds"`  // from the node's start until all of it was found again (s)
	Seconds        float64  `json:"seconds"`         // the whole demo (s)
	Interrupted    bool     `json:"interrupted"`     // the workload was cut short
	Next           []string `json:"next"`            // what to try next
}

// Node is one server as it stood before the kill.
type Node struct {
	Name   string `json:"name"`   // a node
	Blocks int64  `json:"blocks"` // stored there before the kill (blocks)
	Bytes  int64  `json:"bytes"`  // payload of them (bytes)
}

// Thrice is what was found before the kill, without the node, and when it was back.
type Thrice struct {
	Before  int64 `json:"before"`  // before the kill (blocks)
	Without int64 `json:"without"` // of these, while the node was away (blocks)
	After   int64 `json:"after"`   // of these, when it was back (blocks)
}

// Ratios are hit ratios of the workload's three parts.
type Ratios struct {
	Before  float64 `json:"before"`  // blocks restored ÷ blocks asked for, of the requests before the kill
	Without float64 `json:"without"` // of those while the node was away
	After   float64 `json:"after"`   // of those when it was back
}

// Bad reports whether the run broke what must always hold.
func (r *Result) Bad() bool {
	return r.WrongBytes > 0 || r.BrokenPromises > 0 || !r.Interrupted && r.Found.After < r.Found.Before
}

// server is one node's process.
type server struct {
	node clustermap.Node
	cmd  *exec.Cmd
	said strings.Builder
	done chan struct{}
}

// demo is one run.
type demo struct {
	Options
	root    string
	sockets string // directory of them: a socket's path must be short
	token   string // with which the demo is let in
	m       *clustermap.Map
	servers []*server
	st      *replication.Store
	gen     *chat.Generator
	seen    []trace.Request
	sample  [][]skep.Key // chains that are looked for
	res     *Result
}

// Run is the whole demo.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	if o.Requests == 0 {
		o.Requests = 300
	}
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	if o.Requests < 10 || o.Requests > 100_000 {
		return nil, skep.Invalidf("cluster demo", "--requests", o.Requests, "10 to 100000")
	}
	if o.Replicas < 0 || o.Replicas > 3 {
		return nil, skep.Invalidf("cluster demo", "--replicas", o.Replicas, "1 to 3, the nodes")
	}
	if o.Dir != "" {
		if err := os.MkdirAll(o.Dir, 0o755); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	d := &demo{Options: o, res: &Result{}}
	if d.root, err = os.MkdirTemp(o.Dir, "skep-cluster-"); err != nil {
		return nil, err
	}
	defer func() {
		if d.st != nil {
			err = errors.Join(err, d.st.Close())
		}
		for _, s := range d.servers {
			s.kill()
		}
		err = errors.Join(err, os.RemoveAll(d.root), os.RemoveAll(d.sockets))
	}()
	if err := d.start(ctx); err != nil {
		return nil, err
	}
	if err := d.play(ctx); err != nil {
		return nil, err
	}
	d.res.Seconds = time.Since(began).Seconds()
	d.res.Next = []string{
		"skep serve --cluster map.yaml --node a --dir D   a node of a map of your own",
		"skep serve --help                                where it listens, and what else it can be told",
	}
	return d.res, nil
}

// start writes a map of three nodes, starts them, and connects by way of the first.
func (d *demo) start(ctx context.Context) error {
	var err error
	if d.sockets, err = os.MkdirTemp("", "skep"); err != nil {
		return err
	}
	d.token = rand.Text()
	d.m = &clustermap.Map{Group: clustermap.DefaultGroup, Replicas: d.Replicas}
	if _, err := io.ReadFull(rand.Reader, d.m.Seed[:]); err != nil {
		return err
	}
	for i, name := range []string{"a", "b", "c"} {
		d.m.Nodes = append(d.m.Nodes, clustermap.Node{ID: uint64(i + 1), Name: name, Addr: "unix:" + filepath.Join(d.sockets, name), Weight: 1})
	}
	text, err := d.m.Encode()
	if err != nil {
		return err
	}
	settings := fmt.Sprintf("credentials:\n  - {name: demo, tenant: %q, rights: [read, write, admin], token_sha256: %x}\n"+
		"store: {io_bytes: 128MiB, block_bytes: 64KiB}\nlimits: {memory_bytes: 64MiB}\n", auth.AnyTenant, sha256.Sum256([]byte(d.token)))
	if err := errors.Join(os.WriteFile(d.file("map.json"), text, 0o600), os.WriteFile(d.file("skep.yaml"), []byte(settings), 0o600)); err != nil {
		return err
	}
	d.Note("1/4  three nodes, each a process with a store of its own, in %s", d.root)
	for _, n := range d.m.Nodes {
		s := &server{node: n}
		d.servers = append(d.servers, s)
		if err := d.launch(ctx, s); err != nil {
			return err
		}
	}
	for _, s := range d.servers {
		if err := d.answers(ctx, s); err != nil {
			return err
		}
	}
	d.st, err = replication.Dial(ctx, d.to(d.servers[0]))
	return err
}

func (d *demo) file(name string) string { return filepath.Join(d.root, name) }

// to is how a node is reached.
func (d *demo) to(s *server) wire.Options {
	return wire.Options{Addr: s.node.Addr, Token: d.token, Name: "cluster demo"}
}

// launch starts a node's process.
func (d *demo) launch(ctx context.Context, s *server) error {
	cmd, err := self.Command(ctx, d.Self, "serve", "--config", d.file("skep.yaml"), "--cluster", d.file("map.json"), "--node", s.node.Name, "--dir", d.file(s.node.Name),
		"--file-devices", "1", "--capacity", "512MiB", "--dram", "32MiB", "--resp", "none", "--http", "none", "--log", "error")
	if err != nil {
		return err
	}
	s.said.Reset()
	cmd.Stderr = &s.said
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

// kill ends a node's process as a power cut would.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.done
}

// answers waits until the node does.
func (d *demo) answers(ctx context.Context, s *server) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		c, err := wire.Dial(within, d.to(s))
		if err == nil {
			return c.Close()
		}
		select {
		case <-s.done:
			return fmt.Errorf("node %s has ended: %s", s.node.Name, strings.TrimSpace(s.said.String()))
		case <-within.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// part yields so many requests of the workload, and notes them.
type part struct {
	d    *demo
	left int
}

func (p *part) Next() (trace.Request, error) {
	if p.left == 0 {
		return trace.Request{}, io.EOF
	}
	p.left--
	r, err := p.d.gen.Next()
	if err == nil {
		kept := r
		kept.Blocks = slices.Clone(r.Blocks) // the generator uses them again
		p.d.seen = append(p.d.seen, kept)
	}
	return r, err
}

// run plays so many requests and gives their hit ratio. Where a node is away, a flush cannot reach it.
func (d *demo) run(ctx context.Context, requests int, away bool) (float64, error) {
	sum, err := replay.Run(ctx, d.st, &part{d, requests}, replay.Options{BlockBytes: blockBytes, RegionBytes: 16 << 20})
	if away && errors.Is(err, skep.Unavailable) {
		err = nil
	}
	d.res.Requests += sum.Requests
	d.res.BytesPut += sum.BytesPut
	d.res.BytesRestored += sum.BytesRestored
	d.res.WrongBytes += sum.WrongBytes
	d.res.BrokenPromises += sum.BrokenPromises
	for _, n := range sum.Declined {
		d.res.Declined += n
	}
	d.res.Interrupted = d.res.Interrupted || sum.Interrupted
	return sum.HitRatio, err
}

// play is the workload, in three parts.
func (d *demo) play(ctx context.Context) (err error) {
	d.gen, err = chat.New(chat.Params{Requests: d.Requests, Seed: d.Seed, BlockTokens: 128, Turns: 5, SystemPrompts: 16,
		System: chat.LogNormal{Median: 1500, Sigma: .5}, Prompt: chat.LogNormal{Median: 700, Sigma: 1}, MaxInput: 32_000})
	if err != nil {
		return err
	}
	r := d.res
	first, second := d.Requests/2, d.Requests/4
	if r.HitRatio.Before, err = d.run(ctx, first, false); err != nil || r.Interrupted {
		return err
	}
	if err := d.chains(ctx, d.seen[max(0, len(d.seen)-recent):]); err != nil {
		return err
	}
	if err := d.count(ctx); err != nil {
		return err
	}
	victim := d.servers[1]
	victim.kill()
	r.Killed, r.KilledAt = victim.node.Name, r.Requests
	if r.Found.Without, err = d.find(ctx); err != nil {
		return err
	}
	d.Note("2/4  node %s killed with SIGKILL after request %d: of %d blocks of the last requests %d are found", r.Killed, r.KilledAt, r.Found.Before, r.Found.Without)
	if r.HitRatio.Without, err = d.run(ctx, second, true); err != nil || r.Interrupted {
		return err
	}
	d.Note("3/4  %d requests without it; starting it again", second)
	r.BackAt = r.Requests
	back := time.Now()
	if err := d.launch(ctx, victim); err != nil {
		return err
	}
	if err := d.answers(ctx, victim); err != nil {
		return err
	}
	if err := d.untilFound(ctx); err != nil {
		return err
	}
	r.ReturnSeconds = time.Since(back).Seconds()
	d.Note("4/4  it is back: %d of those blocks are found", r.Found.After)
	r.HitRatio.After, err = d.run(ctx, d.Requests-first-second, false)
	return err
}

// untilFound looks for the sample until as much is found as before, or for two minutes: a client that met nobody there
// waits a while before it tries a node again, and on a busy machine a node takes its time. All of it is there: what was
// put was flushed before the kill.
func (d *demo) untilFound(ctx context.Context) (err error) {
	within, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		if d.res.Found.After, err = d.find(ctx); err != nil || d.res.Found.After >= d.res.Found.Before {
			return err
		}
		select {
		case <-within.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// chains is what is stored of the chains of requests, but for the last block of each: a partial tail is replaced when
// its conversation goes on.
func (d *demo) chains(ctx context.Context, requests []trace.Request) error {
	for _, r := range requests {
		keys := make([]skep.Key, len(r.Blocks))
		for i, id := range r.Blocks {
			keys[i] = replay.Key(r.Model, id)
		}
		found, err := d.lookup(ctx, keys)
		if err != nil {
			return err
		}
		if found > 1 {
			d.sample = append(d.sample, keys[:found-1])
			d.res.Found.Before += int64(found - 1)
		}
	}
	return nil
}

// find is how many blocks of the sample are found.
func (d *demo) find(ctx context.Context) (found int64, err error) {
	for _, keys := range d.sample {
		n, err := d.lookup(ctx, keys)
		if err != nil {
			return 0, err
		}
		found += int64(n)
	}
	return found, nil
}

func (d *demo) lookup(ctx context.Context, keys []skep.Key) (int, error) {
	spaces, err := d.st.NamespacesOf(ctx, "replay")
	if err != nil || len(spaces) == 0 {
		return 0, err
	}
	l, err := d.st.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: spaces[0].ID}, Keys: keys, Lease: skep.NoLease})
	return l.Blocks, err
}

// count asks each node what it has.
func (d *demo) count(ctx context.Context) error {
	for _, s := range d.servers {
		c, err := wire.Dial(ctx, d.to(s))
		if err != nil {
			return err
		}
		st, err := c.Stats(ctx)
		if err = errors.Join(err, c.Close()); err != nil {
			return err
		}
		d.res.Nodes = append(d.res.Nodes, Node{Name: s.node.Name, Blocks: st.Blocks, Bytes: st.BlockBytes})
	}
	return nil
}
