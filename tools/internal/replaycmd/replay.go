package replaycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/replay"
	"github.com/skepkv/skep/tools/internal/trace"
	"github.com/skepkv/skep/tools/internal/units"
)

type app struct{ *command.App }

type replayFlags struct {
	dir        string
	devices    int
	capacity   int
	blockBytes int64
	policy     string
	speed      string
	dramBytes  int64
	backend    string
	degraded   string
	limit      int
	paths      []string
	admission  string
	clock      traceClock
}

// traceClock shows the trace's time to the store, so that a budget by the day is one of
// the trace's days.
type traceClock struct {
	start time.Time
	at    atomic.Int64
}

func (c *traceClock) set(at time.Duration) { c.at.Store(int64(at)) }
func (c *traceClock) now() time.Time       { return c.start.Add(time.Duration(c.at.Load())) }

// admissionOf parses all, second-touch, budget or budget=BYTES.
func admissionOf(s string) (policy string, perDay int64, err error) {
	policy, number, has := strings.Cut(s, "=")
	if has {
		perDay, err = strconv.ParseInt(number, 10, 64)
	}
	if err != nil || perDay < 0 || has && policy != "budget" {
		return "", 0, skep.Invalidf("replay", "--admission", s, "all, second-touch, budget, or budget=BYTES")
	}
	return policy, perDay, nil
}

// New is the command replay.
func New(c *command.App) *cobra.Command {
	a, f := &app{c}, &replayFlags{}
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "replay a serving trace on a store and check every byte",
		Long: `Replays a recorded workload: looks each request's blocks up, restores what is found,
compares every byte, puts the rest. FILE is Mooncake's JSONL, a kv-cache-tester JSON document
or a tar of them, plain or zstd; - is standard input. --dir holds device-0, device-1, … and
catalog/; a second run on the same directory opens what is there.`,
		Example: `  skep replay conversation_trace.jsonl.zst --file-devices 4 --dir /mnt/kv --capacity-blocks 10000 --block-size 64KiB
  zstd -dc trace.jsonl.zst | skep replay - --dir /tmp/kv --json`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error { return a.replay(cmd.Context(), args[0], f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.dir, "dir", "", "directory of the store (required)")
	fl.IntVar(&f.devices, "file-devices", 4, "file devices of a new store")
	units.Renamed(fl, "file-devices", "devices")
	fl.IntVar(&f.capacity, "capacity-blocks", 0, "cap: all devices together hold --capacity-blocks × --block-size × 1.07 bytes; 0: no cap")
	units.SizeVar(fl, &f.blockBytes, "block-size", 64<<10, "payload of a block", "block-bytes")
	fl.StringVar(&f.policy, "policy", "cost", "what is kept: cost, lru or s3fifo")
	fl.StringVar(&f.speed, "speed", "max", "max: one request after the other; 1x, 10x: at the trace's times, or so much faster")
	units.SizeVar(fl, &f.dramBytes, "dram", 0, "DRAM tier; 0: none, so that figures speak of the devices", "dram-bytes")
	fl.StringVar(&f.admission, "admission", "all", "what goes to the devices: all; budget=BYTES a day and device, of the trace's time, by use in the DRAM tier; second-touch, to compare")
	fl.StringVar(&f.degraded, "degraded", store.DegradedNever, "with a device missing: never opens, auto does when no durable block is lost with it, always does")
	fl.StringVar(&f.backend, "backend", device.Auto, "how devices are driven: auto, iouring or pool")
	fl.StringSliceVar(&f.paths, "device", nil, "block devices or files in place of --file-devices files in --dir; a new store wants them blank or absent")
	fl.IntVar(&f.limit, "limit", 0, "stop after so many requests; 0: all")
	return cmd
}

func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return command.WithNext(skep.Invalidf(cmd.Name(), "arguments", len(args), "one trace file, or - for standard input"), cmd.CommandPath()+" --help shows an example")
}

// storeOptions checks the flags and makes a store's options of them.
func (f *replayFlags) storeOptions() (store.Options, error) {
	if len(f.paths) > 0 {
		f.devices = len(f.paths)
	}
	o := store.Options{Dir: f.dir, Devices: f.paths, DeviceCount: f.devices, BlockBytes: f.blockBytes, Policy: f.policy, Degraded: f.degraded, LogicalBlocks: f.capacity,
		CacheBytes: f.dramBytes, Admin: true, Device: device.Options{Backend: f.backend}}
	in := func(field string, ok bool, value, limit any) error {
		if ok {
			return nil
		}
		return skep.Invalidf("replay", field, value, limit)
	}
	err := errors.Join(
		in("--dir", f.dir != "", "empty", "a directory"),
		in("--file-devices", f.devices >= 1 && f.devices <= 64, f.devices, "1 to 64"),
		in("--capacity-blocks", f.capacity >= 0, f.capacity, "0 or more"),
		in("--block-size", f.blockBytes >= 1 && f.blockBytes <= skep.MaxPartBytes, f.blockBytes, fmt.Sprintf("1 to %d", int64(skep.MaxPartBytes))),
		in("--dram", f.dramBytes >= 0, f.dramBytes, "0 or more"),
		in("--limit", f.limit >= 0, f.limit, "0 or more"),
		in("--policy", f.policy == "cost" || f.policy == "lru" || f.policy == "s3fifo", f.policy, "cost, lru or s3fifo"),
		in("--degraded", f.degraded == store.DegradedAuto || f.degraded == store.DegradedNever || f.degraded == store.DegradedAlways, f.degraded, "auto, never or always"),
		in("--backend", f.backend == device.Auto || f.backend == device.IOUring || f.backend == device.Pool, f.backend, "auto, iouring or pool"),
	)
	if err != nil {
		return o, err
	}
	if f.dramBytes == 0 {
		o.CacheBytes = -1
	}
	if o.Admission, o.WriteBudget, err = admissionOf(f.admission); err != nil {
		return o, err
	}
	if o.Admission != "all" {
		f.clock.start = time.Now()
		o.Clock = f.clock.now
	}
	// 107/100 in whole numbers: the cap is exact.
	if b := f.blockBytes; f.capacity > 0 {
		if int64(f.capacity) > math.MaxInt64/b/107 {
			return o, skep.Invalidf("replay", "--capacity-blocks", f.capacity, "within 2^63 bytes altogether")
		}
		o.CapacityBytes = int64(f.capacity) * b * 107 / 100
	}
	// The replay holds two regions all the time; the store needs room besides.
	o.IOBytes = 2*max(replay.DefaultRegionBytes, f.blockBytes) + 256<<20
	return o, nil
}

// speed parses max, 1x, 10x, 2.5x.
func parseSpeed(s string) (float64, error) {
	if s == "max" {
		return 0, nil
	}
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "x"), 64)
	if err != nil || !strings.HasSuffix(s, "x") || !(v > 0) || v > 1e6 {
		return 0, skep.Invalidf("replay", "--speed", s, "max, or a factor such as 1x or 10x")
	}
	return v, nil
}

func (a *app) replay(ctx context.Context, file string, f *replayFlags) error {
	log, err := a.Logger()
	if err != nil {
		return err
	}
	so, err := f.storeOptions()
	if err != nil {
		return err
	}
	so.Logger = log
	speed, err := parseSpeed(f.speed)
	if err != nil {
		return err
	}
	total, err := a.checkTrace(ctx, file)
	if err != nil {
		return err
	}
	if f.limit > 0 && (total == 0 || f.limit < total) {
		total = f.limit
	}
	src, err := a.openTrace(file)
	if err != nil {
		return err
	}
	defer src.Close()

	st, err := store.Open(ctx, so)
	if err != nil {
		return refusedStore(err)
	}
	if err := onlyReplays(ctx, st, f.dir); err != nil {
		return errors.Join(err, st.Close())
	}
	p := newProgress(a.Err, total)
	res, err := replay.Run(ctx, st, &limited{src, f.limit}, replay.Options{BlockBytes: f.blockBytes, Speed: speed, Clock: f.clock.set, Done: p.step})
	res.Policy, res.Speed, res.Format = f.policy, f.speed, string(src.Format())
	err = errors.Join(AsTrace(err), st.Close())
	if err != nil && res.Requests == 0 {
		return err
	}
	// An error in the middle is told beside what was done until then.
	if perr := a.Print(res, func(w io.Writer) { replayTable(w, res) }); perr != nil || err != nil {
		return errors.Join(err, perr)
	}
	switch {
	case res.Bad():
		a.Code = command.Failed
		fmt.Fprintf(a.Err, "skep: replay: %d wrong bytes, %d broken promises\nnext: keep %s and report this; neither may ever happen\n", res.WrongBytes, res.BrokenPromises, f.dir)
	case res.Interrupted:
		a.Code = command.Interrupted
	}
	return nil
}

// onlyReplays refuses a store that has somebody's blocks: a replay would evict them.
func onlyReplays(ctx context.Context, st *store.Store, dir string) error {
	spaces, err := st.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, n := range spaces {
		if n.Tenant != replay.Tenant {
			err := &skep.Error{Op: "replay", Kind: skep.Conflict, Field: "--dir", Value: dir,
				Limit: "a new store, or one of an earlier replay",
				Err:   fmt.Errorf("tenant %q has a namespace there", n.Tenant)}
			return command.WithNext(err, "give another --dir: a replay evicts what is stored")
		}
	}
	return nil
}

// refusedStore says what to do where a store was made with other devices or another cap.
func refusedStore(err error) error {
	var e *skep.Error
	flag := map[string]string{"device count": "--file-devices", "capacity bytes": "--capacity-blocks"}
	if errors.As(err, &e) && e.Kind == skep.Invalid && e.Op == "open store" && flag[e.Field] != "" {
		return command.WithNext(skep.Invalidf("replay", flag[e.Field], e.Value, e.Limit), "give what the store was made with, or another --dir")
	}
	return err
}

// openTrace opens the file, or standard input for "-".
func (a *app) openTrace(file string) (*trace.Reader, error) {
	if file == "-" {
		r, err := trace.NewReader("standard input", a.In)
		return r, AsTrace(err)
	}
	r, err := trace.Open(file)
	return r, AsTrace(err)
}

// checkTrace reads a file from end to end before anything is made, so that a damaged
// one changes nothing, and counts its requests. Standard input is read once only.
func (a *app) checkTrace(ctx context.Context, file string) (requests int, err error) {
	if file == "-" {
		return 0, nil
	}
	r, err := a.openTrace(file)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for _, err := range r.All() {
		if err != nil {
			return 0, AsTrace(err)
		}
		if requests++; ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	if requests == 0 {
		return 0, skep.Invalidf("replay", file, "no requests", "at least one")
	}
	return requests, nil
}

// limited ends a source after n requests; 0: never.
type limited struct {
	replay.Source
	n int
}

func (l *limited) Next() (trace.Request, error) {
	if l.n > 0 {
		if l.n--; l.n == 0 {
			l.n = -1
		}
	} else if l.n < 0 {
		return trace.Request{}, io.EOF
	}
	return l.Source.Next()
}

// progress prints a line every few seconds of a longer run.
type progress struct {
	w     io.Writer
	total int // requests; 0: not known
	next  time.Duration
}

func newProgress(w io.Writer, total int) *progress { return &progress{w, total, 2 * time.Second} }

func (p *progress) step(s replay.Step) {
	if s.At < p.next {
		return
	}
	p.next = s.At + 3*time.Second
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf("/%d (%d %%)", p.total, 100*s.Request/p.total)
	}
	r := s.Sum
	fmt.Fprintf(p.w, "%5.0f s  %d%s requests  hit %.4f  put %s  restored %s  wrong %d\n", s.At.Seconds(), s.Request, of,
		float64(r.BlocksHit)/max(float64(r.BlocksReferenced), 1), command.Size(r.BytesPut), command.Size(r.BytesRestored), r.WrongBytes)
}

func admissionText(r *replay.Result) string {
	if r.Admission == "all" {
		return r.Admission
	}
	budget := ""
	if r.BudgetPerDay > 0 {
		budget = fmt.Sprintf(" of %s a day and device", command.Size(r.BudgetPerDay))
	}
	return fmt.Sprintf("%s%s: %d blocks admitted; refused %s; %d hits lost to refusals", r.Admission, budget, r.BlocksAdmitted, command.Counts(r.Refused), r.RefusedHits)
}

func replayTable(w io.Writer, r *replay.Result) {
	command.Table(w,
		command.Row("requests", r.Requests),
		command.Row("blocks", fmt.Sprintf("%d referenced, %d hit", r.BlocksReferenced, r.BlocksHit)),
		command.Row("hit ratio", fmt.Sprintf("%.4f", r.HitRatio)),
		command.Row("put", fmt.Sprintf("%s at %.2f GB/s", command.Size(r.BytesPut), r.PutGBps)),
		command.Row("restored", fmt.Sprintf("%s at %.2f GB/s, every byte compared", command.Size(r.BytesRestored), r.RestoreGBps)),
		command.Row("wrong bytes", r.WrongBytes),
		command.Row("broken promises", r.BrokenPromises),
		command.Row("misses", command.Counts(r.Misses)),
		command.Row("declined", command.Counts(r.Declined)),
		command.Row("admission", admissionText(r)),
		command.Row("write amplification", fmt.Sprintf("%.3f", r.WriteAmplification)),
		command.Row("device bytes", fmt.Sprintf("%s read, %s written, %s large", command.Size(r.DeviceBytesRead), command.Size(r.DeviceBytesWritten), command.Size(r.DeviceBytes))),
		command.Row("lookup", fmt.Sprintf("p50 %.1f µs, p99 %.1f µs", r.LookupUs.P50, r.LookupUs.P99)),
		command.Row("restore", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", r.RestoreMs.P50, r.RestoreMs.P99)),
		command.Row("seconds", fmt.Sprintf("%.2f: lookup %.2f, restore %.2f, put %.2f, making payload %.2f, comparing it %.2f, waiting %.2f",
			r.Seconds, r.LookupSeconds, r.RestoreSeconds, r.PutSeconds, r.GenerateSeconds, r.VerifySeconds, r.PaceSeconds)),
		command.Row("policy", r.Policy),
		command.Row("backend", command.Backend(r.Backend, r.BackendReason, r.Simulated)),
	)
	if r.Interrupted {
		fmt.Fprintln(w, "interrupted: the figures are of what was done until then")
	}
}
