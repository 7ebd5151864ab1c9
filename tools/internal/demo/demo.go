package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/chat"
	"github.com/skepkv/skep/tools/internal/hist"
	"github.com/skepkv/skep/tools/internal/replay"
	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/tools/internal/trace"
)

// Options of Run. Zero fields take their defaults.
type Options struct {
	Dir        string // where the store is made; the system's temporary directory
	Page       string // where the page is written; beside the store
	Keep       bool   // keep the store
	Requests   int    // 1,200
	BlockBytes int64  // 64 KiB
	Capacity   int    // blocks; 6,000
	Devices    int    // 4
	Seed       uint64
	Backend    string
	Within     time.Duration // the workload is cut so that all ends by then; 80 s
	Self       []string
	Log        *slog.Logger
	Note       func(format string, args ...any)

	kill func(*os.Process) error // in tests; nil: as it is done
}

func (o *Options) ensureDefaults() {
	if o.Requests == 0 {
		o.Requests = 1200
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 64 << 10
	}
	if o.Capacity == 0 {
		o.Capacity = 6000
	}
	if o.Devices == 0 {
		o.Devices = 4
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Within == 0 {
		o.Within = 80 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
}

func (o *Options) validate() error {
	const op = "demo"
	switch {
	case o.Requests < 10 || o.Requests > 1e6:
		return skep.Invalidf(op, "--requests", o.Requests, "10 to 1000000")
	case o.BlockBytes < 4096 || o.BlockBytes > 64<<20:
		return skep.Invalidf(op, "--block-size", o.BlockBytes, "4096 to 67108864")
	case o.Capacity < 100 || o.Capacity > 1e9:
		return skep.Invalidf(op, "--capacity-blocks", o.Capacity, "100 to 1000000000")
	case o.Devices < 1 || o.Devices > 64:
		return skep.Invalidf(op, "--file-devices", o.Devices, "1 to 64")
	}
	return nil
}

// chat is the workload: conversations of several turns over shared system prompts.
func (o *Options) chat() chat.Params {
	return chat.Params{Requests: o.Requests, Seed: o.Seed, BlockTokens: 128, Turns: 5, SystemPrompts: 16,
		System: chat.LogNormal{Median: 1500, Sigma: .5}, Prompt: chat.LogNormal{Median: 700, Sigma: 1}, MaxInput: 32_000}
}

func (o *Options) open(ctx context.Context, dir string) (skep.Store, error) {
	so := store.Options{Dir: dir, DeviceCount: o.Devices, BlockBytes: o.BlockBytes, LogicalBlocks: o.Capacity, CacheBytes: -1,
		CapacityBytes: int64(o.Capacity) * o.BlockBytes * 107 / 100, IOBytes: 2*replay.DefaultRegionBytes + 128<<20, Logger: o.Log}
	so.Device.Backend = o.Backend
	return store.Open(ctx, so)
}

// Result of the demo.
type Result struct {
	Requests        int     `json:"requests"`                 // replayed, in both processes
	KilledAt        int     `json:"killed_at_request"`        // last request the first process finished
	HitRatio        float64 `json:"hit_ratio"`                // blocks restored ÷ blocks asked for
	HitBefore       float64 `json:"hit_ratio_before_kill"`    // of the first process
	HitAfter        float64 `json:"hit_ratio_after_recovery"` // of the second
	RecoverySeconds float64 `json:"recovery_seconds"`         // to open the store after the kill (s)
	// of the last 20 requests before the kill (blocks)
	RecentBlocks int64 `json:"recent_blocks"`
	// of these, found after it; the cleaner may have taken some (blocks)
	RecentFound     int64 `json:"recent_blocks_found"`
	BlocksRecovered int64 `json:"blocks_recovered"` // in the store after recovery (blocks)
	BytesPut        int64 `json:"bytes_put"`        // payload committed (bytes)
	BytesRestored   int64 `json:"bytes_restored"`   // payload restored, all of it compared (bytes)
	// restored bytes that are not what was put (bytes)
	WrongBytes int64 `json:"wrong_bytes"`
	// leased blocks that were not delivered (blocks)
	BrokenPromises int64              `json:"broken_promises"`
	LookupUs       replay.Percentiles `json:"lookup_us"` // of the calls to Lookup (µs)
	// to restore all that was found, over requests (ms)
	RestoreMs     replay.Percentiles `json:"restore_ms"`
	Seconds       float64            `json:"seconds"`        // the whole demo (s)
	Page          string             `json:"page"`           // where the page is
	Dir           string             `json:"dir"`            // where the demo worked
	Backend       string             `json:"backend"`        // what moved the bytes
	BackendReason string             `json:"backend_reason"` // why not a better one
	Simulated     bool               `json:"simulated"`      // a device is a simulation
	Policy        string             `json:"policy"`         // what was kept
	Interrupted   bool               `json:"interrupted"`    // the workload was cut for time
	Next          []string           `json:"next"`           // what to try next

	lookups, restores     hist.Hist
	steps                 []step
	refs, hits            int64
	refsBefore, hitBefore int64
}

// Bad reports whether the run broke what must always hold.
func (r *Result) Bad() bool { return r.WrongBytes > 0 || r.BrokenPromises > 0 }

// step is what is known after one request.
type step struct {
	Request  int
	Blocks   int
	Hit      int
	At       float64 // seconds since the demo began
	Lookup   int64   // ns
	Restore  int64   // ns
	Put      int64   // bytes so far in this process
	Restored int64
	Wrong    int64
	Broken   int64
	Devices  []traffic // now and then
}

// traffic is what one device moved so far in this process, in bytes.
type traffic struct{ Read, Written int64 }

// sampler makes steps of a replay's, with the devices' counters a few times a second.
type sampler struct {
	st     skep.Store
	began  time.Time
	offset int // requests that came before
	last   time.Time
}

func (s *sampler) step(ctx context.Context, r replay.Step) step {
	out := step{Request: s.offset + r.Request, Blocks: r.Blocks, Hit: r.Hit, At: time.Since(s.began).Seconds(), Lookup: int64(r.Lookup), Restore: int64(r.Restore),
		Put: r.Sum.BytesPut, Restored: r.Sum.BytesRestored, Wrong: r.Sum.WrongBytes, Broken: r.Sum.BrokenPromises}
	if time.Since(s.last) > 200*time.Millisecond {
		s.last = time.Now()
		if st, err := s.st.Stats(ctx); err == nil {
			for _, d := range st.Devices {
				out.Devices = append(out.Devices, traffic{d.BytesRead, d.BytesWritten})
			}
		}
	}
	return out
}

// Work is the first half, in a process that will be killed: it replays the workload
// and writes each step to w as a line of JSON.
func Work(ctx context.Context, o Options, began time.Time, w io.Writer) error {
	o.ensureDefaults()
	st, err := o.open(ctx, o.Dir)
	if err != nil {
		return err
	}
	g, err := chat.New(o.chat())
	if err != nil {
		return errors.Join(err, st.Close())
	}
	s := sampler{st: st, began: began}
	enc := json.NewEncoder(w)
	_, err = replay.Run(ctx, st, g, replay.Options{BlockBytes: o.BlockBytes, Done: func(r replay.Step) { _ = enc.Encode(s.step(ctx, r)) }})
	return errors.Join(err, st.Close())
}

// Run is the whole demo.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	if o.Dir != "" {
		if err := os.MkdirAll(o.Dir, 0o755); err != nil {
			return nil, err
		}
	}
	root, err := os.MkdirTemp(o.Dir, "skep-demo-")
	if err != nil {
		return nil, err
	}
	if err := o.room(root); err != nil {
		return nil, errors.Join(err, os.RemoveAll(root))
	}
	res = &Result{Policy: "cost", Dir: root, Page: o.Page}
	if res.Page == "" {
		res.Page = filepath.Join(root, "skep-demo.html")
	}
	dir := filepath.Join(root, "store")
	defer func() {
		switch {
		case err != nil && !o.Keep:
			err = errors.Join(err, os.RemoveAll(root))
		case !o.Keep && o.Page != "":
			err = os.RemoveAll(root)
		case !o.Keep: // the page is there
			err = os.RemoveAll(dir)
		}
	}()
	o.Note("1/4  %d requests of a chat workload on %d file devices in %s", o.Requests, o.Devices, dir)
	if err := o.firstHalf(ctx, dir, began, res); err != nil {
		return nil, err
	}
	o.Note("2/4  killed with SIGKILL after request %d, in mid-put; opening the store again", res.KilledAt)
	if err := o.secondHalf(ctx, dir, began, res); err != nil {
		return nil, err
	}
	o.Note("4/4  drawing %s", res.Page)
	res.finish(began)
	if err := writePage(res, &o); err != nil {
		return nil, err
	}
	res.Next = []string{
		"open " + res.Page,
		"skep replay TRACE --file-devices 4 --dir D --capacity-blocks 10000 --block-size 64KiB   a recorded workload",
		"skep bench restore --dir D    restores beside fio, on your drives",
		"skep doctor --dir D           what this machine does well, and what not",
	}
	return res, nil
}

// room checks that the demo fits on the disk.
func (o *Options) room(dir string) error {
	need := int64(o.Capacity)*o.BlockBytes*107/100 + 256<<20
	free, err := freeBytes(dir)
	if err != nil {
		return err
	}
	if free < need {
		return &skep.Error{Op: "demo", Kind: skep.Full, Field: "free bytes in " + dir, Value: free, Limit: fmt.Sprintf("at least %d; give another --dir or fewer --capacity-blocks", need)}
	}
	return nil
}

// killAt is the request after which the first process is killed: past the middle, when
// the devices are full and being cleaned.
func (o *Options) killAt() int { return o.Requests * 55 / 100 }

func (o *Options) firstHalf(ctx context.Context, dir string, began time.Time, res *Result) error {
	cmd, err := self.Command(ctx, o.Self, "demo-worker", "--dir", dir, "--requests", strconv.Itoa(o.Requests), "--block-size", strconv.FormatInt(o.BlockBytes, 10),
		"--capacity-blocks", strconv.Itoa(o.Capacity), "--file-devices", strconv.Itoa(o.Devices), "--seed", strconv.FormatUint(o.Seed, 10), "--backend", o.Backend,
		"--began", strconv.FormatInt(began.UnixNano(), 10))
	if err != nil {
		return err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	kill := cmd.Process.Kill
	if o.kill != nil {
		kill = func() error { return o.kill(cmd.Process) }
	}
	killed, err := o.follow(out, began, res, kill)
	if err != nil {
		_ = kill() // one that cannot be killed dies of the closed pipe when it says its next step
	}
	_ = out.Close()
	waited := cmd.Wait()
	switch said := strings.TrimSpace(stderr.String()); {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("the demo's first process: %w: %v: %s", err, waited, said)
	case !killed:
		return fmt.Errorf("the demo's first process ended by itself: %w: %s", waited, said)
	}
	if len(res.steps) > 0 {
		res.KilledAt = res.steps[len(res.steps)-1].Request
	}
	res.BytesPut, res.BytesRestored = res.last().Put, res.last().Restored
	res.WrongBytes, res.BrokenPromises = res.last().Wrong, res.last().Broken
	res.refsBefore, res.hitBefore = res.refs, res.hits
	return nil
}

// maxLine is the longest line a step may be.
const maxLine = 1 << 20

// follow adds the first process's steps to the result and kills it past the middle; killed
// says that it did. It returns once no step follows, or with what went wrong: the process may
// run on then, and wait for somebody to read what it says.
func (o *Options) follow(out io.Reader, began time.Time, res *Result, kill func() error) (killed bool, err error) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	noted := time.Now()
	for lines.Scan() {
		var s step
		if json.Unmarshal(lines.Bytes(), &s) != nil {
			if killed {
				break // cut short
			}
			return false, fmt.Errorf("said what is no step: %.80q", lines.Bytes())
		}
		res.add(s)
		if killed { // what it had said before it died
			continue
		}
		if time.Since(noted) > 2*time.Second {
			noted = time.Now()
			o.Note("     %d requests, hit ratio %.3f", s.Request, float64(res.hits)/float64(max(res.refs, 1)))
		}
		// Late machines are killed early, so that recovery is seen in any case.
		if s.Request >= o.killAt() || time.Since(began) > o.Within/2 {
			if err := kill(); err != nil {
				return false, fmt.Errorf("cannot be killed: %w", err)
			}
			killed = true
		}
	}
	if err := lines.Err(); err != nil && !killed {
		return false, fmt.Errorf("a step of more than %d bytes: %w", maxLine, err)
	}
	return killed, nil
}

func (r *Result) last() step {
	if len(r.steps) == 0 {
		return step{}
	}
	return r.steps[len(r.steps)-1]
}

func (r *Result) add(s step) {
	r.steps = append(r.steps, s)
	r.refs += int64(s.Blocks)
	r.hits += int64(s.Hit)
	r.lookups.Record(time.Duration(s.Lookup))
	if s.Restore > 0 {
		r.restores.Record(time.Duration(s.Restore))
	}
}

// recent is how many of the last requests before the kill are looked for after it.
const recent = 20

func (o *Options) secondHalf(ctx context.Context, dir string, began time.Time, res *Result) (err error) {
	start := time.Now()
	st, err := o.open(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	res.RecoverySeconds = time.Since(start).Seconds()
	stats, err := st.Stats(ctx)
	if err != nil {
		return err
	}
	res.BlocksRecovered = stats.Blocks
	res.Backend, res.BackendReason, res.Simulated = stats.Backend, stats.BackendReason, stats.Simulated
	g, err := chat.New(o.chat())
	if err != nil {
		return err
	}
	if err := o.skip(ctx, st, g, res); err != nil {
		return err
	}
	o.Note("3/4  recovered %d blocks in %.2f s; going on with request %d", res.BlocksRecovered, res.RecoverySeconds, res.KilledAt+1)
	run, cancel := context.WithDeadline(ctx, began.Add(o.Within))
	defer cancel()
	s := sampler{st: st, began: began, offset: res.KilledAt}
	noted := time.Now()
	sum, err := replay.Run(run, st, g, replay.Options{BlockBytes: o.BlockBytes, Done: func(r replay.Step) {
		at := s.step(ctx, r)
		res.add(at)
		if time.Since(noted) > 2*time.Second {
			noted = time.Now()
			o.Note("     %d requests, hit ratio %.3f", at.Request, float64(res.hits)/float64(max(res.refs, 1)))
		}
	}})
	res.BytesPut += sum.BytesPut
	res.BytesRestored += sum.BytesRestored
	res.WrongBytes += sum.WrongBytes
	res.BrokenPromises += sum.BrokenPromises
	res.Interrupted = sum.Interrupted
	return err
}

// skip reads the workload up to the kill and looks the last requests' blocks up.
func (o *Options) skip(ctx context.Context, st skep.Store, g *chat.Generator, res *Result) error {
	spaces, err := st.Namespaces(ctx)
	if err != nil || len(spaces) == 0 {
		return errors.Join(err, errIf(len(spaces) == 0, &skep.Error{Op: "demo", Kind: skep.NotFound, Field: "namespace", Value: "none after recovery"}))
	}
	for i := range res.KilledAt {
		var r trace.Request
		if r, err = g.Next(); err != nil {
			return err
		}
		if i < res.KilledAt-recent {
			continue
		}
		keys := make([]skep.Key, len(r.Blocks))
		for k, id := range r.Blocks {
			keys[k] = replay.Key(r.Model, id)
		}
		found, err := st.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: spaces[0].ID}, Keys: keys, Lease: skep.NoLease})
		if err != nil {
			return err
		}
		res.RecentBlocks += int64(len(keys))
		res.RecentFound += int64(found.Blocks)
	}
	return nil
}

func errIf(cond bool, err error) error {
	if cond {
		return err
	}
	return nil
}

func (r *Result) finish(began time.Time) {
	share := func(hits, refs int64) float64 { return float64(hits) / float64(max(refs, 1)) }
	r.Requests = len(r.steps)
	r.HitRatio = share(r.hits, r.refs)
	r.HitBefore = share(r.hitBefore, r.refsBefore)
	r.HitAfter = share(r.hits-r.hitBefore, r.refs-r.refsBefore)
	r.LookupUs = replay.PercentilesOf(&r.lookups, time.Microsecond)
	r.RestoreMs = replay.PercentilesOf(&r.restores, time.Millisecond)
	r.Seconds = time.Since(began).Seconds()
}
