package enginesbench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/self"
)

// Options of Run.
type Options struct {
	bench.Common
	Blocks         int
	BlockBytes     int64
	Batch          int    // blocks of a call
	Keys           int    // of a lookup
	Python         string // that has skepkv
	MooncakePython string // that has Mooncake; empty: Python
	Self           []string
}

func (o *Options) validate() error {
	const op = "bench engines"
	switch {
	case o.Blocks < 1 || o.Blocks > 1<<16:
		return skep.Invalidf(op, "--blocks", o.Blocks, fmt.Sprintf("1 to %d", 1<<16))
	case o.BlockBytes < 4096 || o.BlockBytes > 32<<20:
		return skep.Invalidf(op, "--block-size", o.BlockBytes, fmt.Sprintf("4096 to %d", 32<<20))
	case o.Batch < 1 || o.Batch > o.Blocks:
		return skep.Invalidf(op, "--batch", o.Batch, fmt.Sprintf("1 to %d, all blocks", o.Blocks))
	case o.Keys < 1 || o.Keys > 1<<16:
		return skep.Invalidf(op, "--keys", o.Keys, fmt.Sprintf("1 to %d", 1<<16))
	}
	return o.Common.Validate()
}

// Row is one call, by one way.
type Row struct {
	Call string `json:"call"` // put, put to memory, get from drives, get, or lookup
	// skepkv, each (the same, each key a chain of its own), embedded (a Store in this process), mooncake or fio
	Way   string  `json:"way"`
	GBps  float64 `json:"gbps"`                // of a put or a get (GB/s)
	CPU   float64 `json:"client_cpu_s_per_gb"` // of the client; embedded has the store's in it (s/GB)
	Us    float64 `json:"us_p50"`              // of a lookup; 0 elsewhere (µs)
	Ratio float64 `json:"ratio"`               // skepkv's GB/s ÷ this way's; 0 where there is nothing to compare
	Goal  string  `json:"goal"`                // of the row
	// fewest blocks that were in memory before a get, over all rounds (blocks)
	InMemory int `json:"blocks_in_memory"`

	Samples []bench.Sample `json:"samples"`    // of a put or a get, a round each
	UsRound []float64      `json:"us_samples"` // of a lookup, the median of each round (µs)
}

// Result is what Run measured.
type Result struct {
	bench.About
	Versions []string `json:"versions"` // of what was measured in Python
	Skipped  []string `json:"skipped"`  // what was not, and why
	Rounds   int      `json:"rounds"`   // rounds, of which medians are given
	Method   string   `json:"method"`   // how it was measured
	Rows     []Row    `json:"rows"`     // by call and way
}

const method = "%d blocks of %d bytes in batches of %d: put, got from the drive, read twice through the " +
	"store's own memory, and got from there, every byte compared; ways in turns. put to memory: a chain that is " +
	"accepted, and drives are waited for after it. skepkv: Python, memory shared with a " +
	"skep serve of one file whose DRAM tier has room for twice the blocks. " +
	"each: the same, each key a chain of its own. embedded: the same store in this process. " +
	"mooncake: Python, Mooncake Store's batch_put_from and batch_get_into over TCP, blocks in another process's " +
	"memory. fio: %s, to a file beside the store's, as deep as a batch. lookup: %d keys of a chain over the Unix socket, 200 times a round"

//go:embed engines.py
var pythonScript []byte

// way is one of what is measured: a round puts all blocks and gets all.
type way struct {
	name   string
	round  func(ctx context.Context) (round, error)
	lookup func() (float64, error) // nil: none
	rows   [len(calls)]*Row
}

var calls = [...]string{"put", "put to memory", "get from drives", "get"}

type round struct {
	Put      bench.Sample `json:"put"`
	Accepted bench.Sample `json:"accepted"`
	Cold     bench.Sample `json:"cold"` // without bytes: there are no drives
	Get      bench.Sample `json:"get"`
	InMemory int          `json:"in_memory"`
	Wrong    int          `json:"wrong"`
	Us       float64      `json:"us"`
}

type runner struct {
	Options
	dir   string
	res   *Result
	limit bench.Limit
	ends  []func() error
}

// Run measures the package skepkv as inference engines use it, in turns with a Store in this process and, where it
// is installed, with Mooncake Store.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	if runtime.GOOS != "linux" {
		return nil, &skep.Error{Op: "bench engines", Kind: skep.Unsupported, Field: "system",
			Value: runtime.GOOS, Limit: "linux"}
	}
	o.EnsureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("engines")
	if err != nil {
		return nil, err
	}
	defer remove()
	e := &runner{Options: o, dir: dir}
	e.res = &Result{Rounds: o.Rounds, Versions: []string{}, Skipped: []string{},
		Rows: []Row{}}
	e.limit = bench.NewLimit(dir)
	e.res.Method = fmt.Sprintf(method, o.Blocks, o.BlockBytes, o.Batch, e.limit.Name(), o.Keys)
	defer func() {
		for _, end := range slices.Backward(e.ends) {
			err = errors.Join(err, end())
		}
	}()
	return e.res, e.run(ctx)
}

func (e *runner) run(ctx context.Context) error {
	ways, err := e.start(ctx)
	if err != nil {
		return err
	}
	lookup := &Row{Call: "lookup", Way: "skepkv", Goal: "at most 200 µs", Samples: []bench.Sample{}}
	for round := range e.Rounds {
		e.Note("round %d of %d", round+1, e.Rounds)
		for i := range ways {
			w := ways[i]
			if round%2 == 1 {
				w = ways[len(ways)-1-i]
			}
			r, err := w.round(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if r.Wrong > 0 {
				return fmt.Errorf("%s: %d of %d blocks came back with other bytes", w.name, r.Wrong, e.Blocks)
			}
			for i, s := range []bench.Sample{r.Put, r.Accepted, r.Cold, r.Get} {
				if s.Bytes > 0 {
					w.rows[i].Samples = append(w.rows[i].Samples, s)
				}
			}
			w.rows[3].InMemory = min(w.rows[3].InMemory, r.InMemory)
			if w.lookup != nil {
				us, err := w.lookup()
				if err != nil {
					return fmt.Errorf("%s: lookup: %w", w.name, err)
				}
				lookup.UsRound = append(lookup.UsRound, us)
			}
		}
	}
	e.sum(ways, lookup)
	return nil
}

// sum makes the rows.
func (e *runner) sum(ways []*way, lookup *Row) {
	for i := range calls {
		ours := 0.0
		for _, w := range ways {
			r := w.rows[i]
			r.GBps, r.CPU = bench.Median(r.Samples, bench.Sample.GBps), bench.Median(r.Samples, bench.Sample.CPUPerGB)
			if w.name == "skepkv" {
				ours = r.GBps
			}
		}
		for _, w := range ways {
			r := w.rows[i]
			if len(r.Samples) == 0 {
				continue
			}
			switch w.name {
			case "skepkv":
				r.Goal = "client CPU at most 0.05 s/GB"
			case "embedded":
				r.Ratio, r.Goal = bench.Div(ours, r.GBps), "ratio at least 0.9"
			case "each":
				r.Ratio, r.Goal = bench.Div(ours, r.GBps), "ratio at most 1.05"
			case "mooncake":
				r.Ratio, r.Goal = bench.Div(ours, r.GBps), "ratio at least 3"
			case "fio":
				r.Ratio, r.Goal = bench.Div(ours, r.GBps), "ratio at least 0.9"
			}
			e.res.Rows = append(e.res.Rows, *r)
		}
	}
	if len(lookup.UsRound) > 0 {
		lookup.Us = bench.Middle(lookup.UsRound)
		e.res.Rows = append(e.res.Rows, *lookup)
	}
}

// start starts what there is, each with its data directory.
func (e *runner) start(ctx context.Context) ([]*way, error) {
	total := int64(e.Blocks) * e.BlockBytes
	server, stop, err := bench.Serve(ctx, e.Common, e.Self, filepath.Join(e.dir, "server"), 2*total)
	if err != nil {
		return nil, err
	}
	e.ends = append(e.ends, stop)
	script := filepath.Join(e.dir, "engines.py")
	if err := os.WriteFile(script, pythonScript, 0o600); err != nil {
		return nil, err
	}
	embedded, err := e.embedded(ctx, total)
	if err != nil {
		return nil, err
	}
	ways := []*way{embedded}
	for _, p := range []struct {
		name, python string
		args         []string
	}{
		{"skepkv", e.Python, []string{server}}, {"each", e.Python, []string{server}},
		{"mooncake", cmp.Or(e.MooncakePython, e.Python), nil},
	} {
		c, why, err := e.python(ctx, p.python, script, p.name, p.args...)
		if err != nil {
			return nil, err
		}
		if c == nil {
			e.Note("skipped: %s", why)
			e.res.Skipped = append(e.res.Skipped, why)
			continue
		}
		w := &way{name: p.name, round: func(context.Context) (round, error) { return c.ask("round") }}
		if p.name == "skepkv" {
			w.lookup = func() (float64, error) { r, err := c.ask("lookup"); return r.Us, err }
		}
		ways = append(ways, w)
	}
	ways = append(ways, &way{name: "fio", round: func(ctx context.Context) (round, error) { return e.fio(ctx, total) }})
	for _, w := range ways {
		for i, call := range calls {
			w.rows[i] = &Row{Call: call, Way: w.name, Samples: []bench.Sample{}, UsRound: []float64{}}
		}
		w.rows[3].InMemory = e.Blocks
	}
	return ways, nil
}

// fio writes and reads a file of its own, in space that is there already, as the store's file is.
func (e *runner) fio(ctx context.Context, total int64) (out round, err error) {
	path := filepath.Join(e.dir, "fio")
	d, err := device.Create(path, total, device.Options{Backend: device.Pool})
	if err != nil {
		return out, err
	}
	defer os.Remove(path)
	if err := d.Close(); err != nil {
		return out, err
	}
	if out.Put, err = e.limit.Run(ctx, path, "write", e.BlockBytes, total, e.Batch); err != nil {
		return out, err
	}
	out.Cold, err = e.limit.Run(ctx, path, "read", e.BlockBytes, total, e.Batch)
	return out, err
}

// pythonClient is a process of engines.py.
type pythonClient struct {
	in  io.Writer
	out *json.Decoder
	say *bench.Tail
}

func (c *pythonClient) ask(what string) (r round, err error) {
	if _, err = io.WriteString(c.in, what+"\n"); err == nil {
		err = c.out.Decode(&r)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, c.say)
	}
	return r, err
}

// python starts a client; nil, and why, where what it measures is not there.
func (e *runner) python(
	ctx context.Context, python, script, name string, args ...string,
) (*pythonClient, string, error) {
	path, err := exec.LookPath(python)
	if err != nil {
		return nil, fmt.Sprintf("%s: %v", name, err), nil
	}
	given := []string{"-B", script, name}
	for _, n := range []int64{int64(e.Blocks), e.BlockBytes, int64(e.Batch), int64(e.Keys)} {
		given = append(given, strconv.FormatInt(n, 10))
	}
	cmd, err := self.Command(ctx, []string{path}, append(given, args...)...)
	if err != nil {
		return nil, "", err
	}
	c := &pythonClient{say: &bench.Tail{}}
	cmd.Stderr = c.say
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	e.ends = append(e.ends, func() error {
		in.Close()
		return cmd.Wait()
	})
	c.in, c.out = in, json.NewDecoder(bufio.NewReader(out))
	var first struct{ Version, Skipped string }
	if err := c.out.Decode(&first); err != nil {
		return nil, "", fmt.Errorf("%s: %w: %s", name, err, c.say)
	}
	if first.Skipped != "" {
		return nil, first.Skipped, nil
	}
	e.res.Versions = append(e.res.Versions, first.Version)
	return c, "", nil
}

// embedded is a Store in this process, of one file like the server's.
func (e *runner) embedded(ctx context.Context, total int64) (*way, error) {
	st, err := store.Open(ctx, store.Options{Dir: filepath.Join(e.dir, "embedded"), DeviceCount: 1,
		CacheBytes: 2 * total, Device: device.Options{Backend: e.Backend}, Logger: e.Log})
	if err != nil {
		return nil, err
	}
	e.ends = append(e.ends, st.Close)
	ns, err := st.OpenNamespace(ctx,
		skep.NamespaceSpec{Tenant: "default", Name: "skepkv/bench", Shape: skep.Shape{BlockTokens: 1}})
	if err != nil {
		return nil, err
	}
	stats, err := st.Stats(ctx)
	if err != nil {
		return nil, err
	}
	e.res.About = bench.AboutStats(stats)
	chained, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "default", Name: "skepkv/bench/accepted",
		Chained: true, Shape: skep.Shape{BlockTokens: 1}})
	if err != nil {
		return nil, err
	}
	b := &embeddedWay{runner: e, st: st, scope: skep.Scope{Namespace: ns.ID}, chained: skep.Scope{Namespace: chained.ID}}
	b.values, b.memory = make([]byte, total), make([]byte, total)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b.values)
	return &way{name: "embedded", round: b.round}, nil
}

type embeddedWay struct {
	*runner
	st             *store.Store
	scope, chained skep.Scope
	values, memory []byte
	keys           []skep.Key
	n              int // rounds
}

func (b *embeddedWay) round(ctx context.Context) (out round, err error) {
	b.n++
	b.keys = b.keys[:0]
	for i := range b.Blocks {
		b.keys = append(b.keys, skep.KeyOf(fmt.Appendf(nil, "round %d block %d", b.n, i)))
	}
	copy(b.memory, b.values)
	if out.Put, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.put) }); err != nil {
		return out, err
	}
	clear(b.memory)
	if out.Cold, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.get) }); err != nil {
		return out, err
	}
	if !bytes.Equal(b.memory, b.values) {
		out.Wrong++
	}
	for range 2 { // what goes through the store's memory is kept there; what drives read into b.memory would not be
		if _, _, err = b.each(ctx, b.warm); err != nil {
			return out, err
		}
	}
	for i := range b.keys { // key by key: they are no chain
		r := &skep.LookupRequest{Scope: b.scope, Keys: b.keys[i : i+1], Lease: skep.NoLease, Tiers: true}
		f, err := b.st.Lookup(ctx, r)
		if err != nil {
			return out, err
		}
		if f.Blocks == 1 && f.Tiers[0] == skep.TierDRAM {
			out.InMemory++
		}
	}
	clear(b.memory)
	if out.Get, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.get) }); err != nil {
		return out, err
	}
	if !bytes.Equal(b.memory, b.values) {
		out.Wrong++
	}
	if _, err = b.st.Delete(ctx, b.scope, b.keys); err != nil {
		return out, err
	}
	if out.Accepted, err = bench.Timed(func() (int64, int64, error) { return b.each(ctx, b.accept) }); err != nil {
		return out, err
	}
	if err := b.st.Flush(ctx); err != nil {
		return out, err
	}
	_, err = b.st.Delete(ctx, b.chained, b.keys)
	return out, err
}

// each does all blocks, batch by batch.
func (b *embeddedWay) each(
	ctx context.Context, do func(context.Context, []skep.Key, []byte) error,
) (int64, int64, error) {
	for from := 0; from < b.Blocks; from += b.Batch {
		to := min(from+b.Batch, b.Blocks)
		memory := b.memory[int64(from)*b.BlockBytes : int64(to)*b.BlockBytes]
		if err := do(ctx, b.keys[from:to], memory); err != nil {
			return 0, 0, err
		}
	}
	return int64(len(b.memory)), int64(b.Blocks), nil
}

func (b *embeddedWay) put(ctx context.Context, keys []skep.Key, memory []byte) error {
	return b.store(ctx, &skep.PutRequest{Scope: b.scope}, keys, memory)
}

func (b *embeddedWay) accept(ctx context.Context, keys []skep.Key, memory []byte) error {
	r := &skep.PutRequest{Scope: b.chained, Ack: skep.AckAccepted, Depth: slices.Index(b.keys, keys[0])}
	if r.Depth > 0 {
		r.Parent = &b.keys[r.Depth-1]
	}
	return b.store(ctx, r, keys, memory)
}

func (b *embeddedWay) store(ctx context.Context, r *skep.PutRequest, keys []skep.Key, memory []byte) error {
	for i, k := range keys {
		part := memory[int64(i)*b.BlockBytes : int64(i+1)*b.BlockBytes]
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: part}}})
	}
	said, err := b.st.Put(ctx, r)
	for i := range said {
		if err == nil && said[i].Outcome == skep.Declined {
			err = said[i].Reason
		}
	}
	return err
}

func (b *embeddedWay) get(ctx context.Context, keys []skep.Key, memory []byte) error {
	dest := skep.Destination{Memory: memory, Stride: b.BlockBytes}
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.scope, Keys: keys, Dest: dest}}}
	return skep.Load(ctx, b.st, r, func(c *skep.Chunk) error { return c.Err })
}

func (b *embeddedWay) warm(ctx context.Context, keys []skep.Key, _ []byte) error {
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.scope, Keys: keys}}}
	return skep.Load(ctx, b.st, r, func(c *skep.Chunk) error { return c.Err })
}
