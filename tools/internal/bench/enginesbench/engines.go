package enginesbench

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/skepkv/skep"
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
	Nodes          int    // 0: one server, memory shared with it; else a cluster of so many, over TCP
	Kill           string // node or master: what is lost where one is killed; empty: how fast it is
	Seconds        int    // how long is waited for answers after a kill, and for what comes back
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
	case o.Nodes != 0 && (o.Nodes < 3 || o.Nodes > 9):
		return skep.Invalidf(op, "--nodes", o.Nodes, "0 or 3 to 9")
	case o.Kill != "" && o.Kill != killNode && o.Kill != killMaster:
		return skep.Invalidf(op, "--kill", o.Kill, killNode+" or "+killMaster)
	case o.Kill != "" && o.Nodes == 0:
		return skep.Invalidf(op, "--kill", o.Kill, "unset without --nodes")
	case o.Seconds < 0 || o.Seconds > 600:
		return skep.Invalidf(op, "--seconds", o.Seconds, "0 to 600")
	}
	return o.Common.Validate()
}

// Row is one call, by one way.
type Row struct {
	Call string `json:"call"` // put, put to memory, get from drives, get, or lookup
	// skepkv, each (the same, each key a chain of its own), embedded (a Store in this process), go (a client in this
	// process), mooncake or fio
	Way string `json:"way"`
	// nodes of a cluster that have each block; 0: there is no cluster (nodes)
	Copies int     `json:"copies"`
	GBps   float64 `json:"gbps"`                // of a put or a get (GB/s)
	CPU    float64 `json:"client_cpu_s_per_gb"` // of the client; embedded has the store's in it (s/GB)
	Us     float64 `json:"us_p50"`              // of a lookup; 0 elsewhere (µs)
	// skepkv's GB/s ÷ this way's, in a cluster those of each; 0 where there is nothing to compare
	Ratio float64 `json:"ratio"`
	Goal  string  `json:"goal"` // of the row
	// that were in memory before a get, over all rounds the fewest, and the most before one from drives (blocks)
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
	Losses   []Loss   `json:"losses"`   // of kills, one for each round and way
}

const method = "%d blocks of %d bytes in batches of %d: put, got from the drive, read through the store's " +
	"own memory until they are in it, at least twice, and got from there, every byte compared; ways in turns, with a " +
	"second of rest before each put and each get from the drive. " +
	"put to memory: a chain that is accepted, and drives are waited for after it. skepkv: Python, memory shared with a " +
	"skep serve of one file whose DRAM tier has room for twice the blocks. " +
	"each: the same, each key a chain of its own. embedded: the same store in this process. " +
	"mooncake: Python, Mooncake Store's batch_put_from and batch_get_into over TCP, blocks in another process's " +
	"memory. fio: %s, to a file beside the store's, as deep as a batch. lookup: %d keys of a chain over the Unix " +
	"socket, 200 times a round"

//go:embed engines.py
var pythonScript []byte

// way is one of what is measured: a round puts all blocks and gets all.
type way struct {
	name   string
	copies int
	round  func(ctx context.Context) (round, error)
	lookup func() (float64, error) // nil: none
	lossy                          // in a cluster
	rows   [len(calls)]*Row
}

var calls = [...]string{"put", "put to memory", "get from drives", "get"}

type round struct {
	Put          bench.Sample `json:"put"`
	Accepted     bench.Sample `json:"accepted"`
	Cold         bench.Sample `json:"cold"` // without bytes: there are no drives
	Get          bench.Sample `json:"get"`
	InMemory     int          `json:"in_memory"`
	ColdInMemory int          `json:"cold_in_memory"`
	Wrong        int          `json:"wrong"`
	Us           float64      `json:"us"`
	Pass         Pass         `json:"pass"`
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
		Rows: []Row{}, Losses: []Loss{}}
	if e.limit = bench.NewLimit(dir); o.Nodes == 0 {
		e.res.Method = fmt.Sprintf(method, o.Blocks, o.BlockBytes, o.Batch, e.limit.Name(), o.Keys)
	} else {
		e.res.Method = e.methodOfNodes()
	}
	defer func() {
		for _, end := range slices.Backward(e.ends) {
			err = errors.Join(err, end())
		}
	}()
	return e.res, e.run(ctx)
}

func (e *runner) run(ctx context.Context) error {
	script := filepath.Join(e.dir, "engines.py")
	if err := os.WriteFile(script, pythonScript, 0o600); err != nil {
		return err
	}
	start := e.start
	if e.Nodes > 0 {
		start = e.startNodes
	}
	ways, err := start(ctx, script)
	if err != nil {
		return err
	}
	for _, w := range ways {
		for i, call := range calls {
			w.rows[i] = &Row{Call: call, Way: w.name, Copies: w.copies, Samples: []bench.Sample{}, UsRound: []float64{}}
		}
		w.rows[3].InMemory = e.Blocks
	}
	if e.Kill != "" {
		return e.lose(ctx, ways)
	}
	lookup := &Row{Call: "lookup", Way: "skepkv", Goal: "at most 200 µs", Samples: []bench.Sample{}}
	for round := range e.Rounds {
		e.Note("round %d of %d", round+1, e.Rounds)
		for i := range ways {
			w := ways[i]
			if round%2 == 1 {
				w = ways[len(ways)-1-i]
			}
			e.rest(ctx)
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
			w.rows[2].InMemory = max(w.rows[2].InMemory, r.ColdInMemory)
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

// rest lets drives rest before each call that is measured. Those that are paced by credits, as those of clouds are, give
// the more to who comes later: fio's processes take a while to start. engines.py does so, too.
func (e *runner) rest(ctx context.Context) {
	if int64(e.Blocks)*e.BlockBytes < restFrom {
		return
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
}

// restFrom is how many bytes a round has that drives rest for: what is less, no drive paces.
const restFrom = 64 << 20

// sum makes the rows.
func (e *runner) sum(ways []*way, lookup *Row) {
	for i := range calls {
		ours := map[int]float64{} // by copies
		for _, w := range ways {
			r := w.rows[i]
			r.GBps, r.CPU = bench.Median(r.Samples, bench.Sample.GBps), bench.Median(r.Samples, bench.Sample.CPUPerGB)
			if w.name == "skepkv" || w.name == "each" && e.Nodes > 0 {
				ours[w.copies] = r.GBps
			}
		}
		for _, w := range ways {
			r := w.rows[i]
			if len(r.Samples) == 0 {
				continue
			}
			r.Ratio = bench.Div(ours[w.copies], r.GBps)
			switch {
			case e.Nodes > 0:
				e.goalOfNodes(r)
			case w.name == "skepkv":
				r.Ratio, r.Goal = 0, "client CPU at most 0.05 s/GB"
			case w.name == "each":
				r.Goal = "ratio at most 1.05"
			case w.name == "mooncake":
				r.Goal = "ratio at least 3"
			default:
				r.Goal = "ratio at least 0.9"
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
func (e *runner) start(ctx context.Context, script string) ([]*way, error) {
	total := int64(e.Blocks) * e.BlockBytes
	server, stop, err := bench.Serve(ctx, e.Common, e.Self, filepath.Join(e.dir, "server"), 2*total)
	if err != nil {
		return nil, err
	}
	e.ends = append(e.ends, stop)
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
			e.skip(why)
			continue
		}
		w := &way{name: p.name, round: func(context.Context) (round, error) { return c.ask("round") }}
		if p.name == "skepkv" {
			w.lookup = func() (float64, error) { r, err := c.ask("lookup"); return r.Us, err }
		}
		ways = append(ways, w)
	}
	fio := &way{name: "fio", round: func(ctx context.Context) (round, error) { return e.fio(ctx, total) }}
	return append(ways, fio), nil
}

// skip says what is not measured, and why.
func (e *runner) skip(why string) {
	e.Note("skipped: %s", why)
	e.res.Skipped = append(e.res.Skipped, why)
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
	e.rest(ctx)
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
	if !slices.Contains(e.res.Versions, first.Version) {
		e.res.Versions = append(e.res.Versions, first.Version)
	}
	return c, "", nil
}
