package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/payload"
	"github.com/skepkv/skep/tools/internal/self"
)

// RecoverOptions are those of Recover.
type RecoverOptions struct {
	Common
	Blocks     int
	BlockBytes int64
	ChainLen   int // blocks of a chain
	Devices    int
	Check      int // chains looked up afterwards
	Seed       uint64
	Self       []string
}

// RecoverResult is bench recover.
type RecoverResult struct {
	About
	Bench         string  `json:"bench"`          // recover
	Limit         string  `json:"limit"`          // what it is to be compared with
	Method        string  `json:"method"`         // how it was measured
	Blocks        int64   `json:"blocks"`         // acknowledged before the kill (blocks)
	BlockBytes    int64   `json:"block_bytes"`    // payload of a block (bytes)
	Devices       int     `json:"devices"`        // file devices
	Seed          uint64  `json:"seed"`           // gives the same chains again
	WriteSeconds  float64 `json:"write_seconds"`  // until the kill (s)
	CachesDropped bool    `json:"caches_dropped"` // the page cache was dropped before the open
	CachesReason  string  `json:"caches_reason"`  // why not
	OpenSeconds   float64 `json:"open_seconds"`   // inside Open (s)
	// from the call of Open to the first lookup that found all of an acknowledged chain (s)
	FirstLookup   float64 `json:"seconds_to_first_lookup"`
	AllLookups    float64 `json:"seconds_to_all_lookups"` // to the last of the chains checked, restores included (s)
	ChainsChecked int     `json:"chains_checked"`         // drawn at random among the acknowledged (chains)
	ChainsWhole   int     `json:"chains_whole"`           // of these, found whole (chains)
	// acknowledged blocks not found or not restored, in the chains checked (blocks)
	Lost          int64 `json:"lost"`
	Restored      int   `json:"chains_restored"` // restored and compared (chains)
	BytesCompared int64 `json:"bytes_compared"`  // in them (bytes)
	Wrong         int64 `json:"wrong"`           // of these, wrong (bytes)
}

func (o *RecoverOptions) ensureDefaults() {
	o.Common.EnsureDefaults()
	if o.BlockBytes == 0 {
		o.BlockBytes = 4096
	}
	if o.ChainLen == 0 {
		o.ChainLen = 100
	}
	if o.Devices == 0 {
		o.Devices = 4
	}
	if o.Check == 0 {
		o.Check = 10_000
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
}

func (o *RecoverOptions) validate() error {
	const op = "bench recover"
	switch {
	case o.Blocks < o.ChainLen || o.Blocks > 1<<31:
		return skep.Invalidf(op, "--blocks", o.Blocks, fmt.Sprintf("%d (one chain) to %d", o.ChainLen, 1<<31))
	case o.BlockBytes < 1 || o.BlockBytes > 1<<20:
		return skep.Invalidf(op, "--block-size", o.BlockBytes, "1 to 1048576")
	case o.Devices < 1 || o.Devices > 64:
		return skep.Invalidf(op, "--file-devices", o.Devices, "1 to 64")
	case o.Check < 1 || o.Check > 1e7:
		return skep.Invalidf(op, "--check", o.Check, "1 to 10000000")
	}
	return o.Common.Validate()
}

func (o *RecoverOptions) open(ctx context.Context, dir string) (skep.Store, skep.Scope, error) {
	st, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: o.Devices, BlockBytes: o.BlockBytes, CacheBytes: -1,
		Device: device.Options{Backend: o.Backend}, Logger: o.Log})
	if err != nil {
		return nil, skep.Scope{}, err
	}
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "bench", Name: "recover", Model: "payload-1",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: o.BlockBytes}, Chained: true})
	if err != nil {
		return nil, skep.Scope{}, errors.Join(err, st.Close())
	}
	return st, skep.Scope{Namespace: ns.ID}, nil
}

func (o *RecoverOptions) keys(c int) []skep.Key {
	keys := make([]skep.Key, o.ChainLen)
	for i := range keys {
		keys[i] = chainKey(o.Seed, c, i)
	}
	return keys
}

// RecoverWriter puts chains into a store for ever and says on w which are
// acknowledged. It is meant to be killed.
func RecoverWriter(ctx context.Context, o RecoverOptions, w io.Writer) error {
	o.ensureDefaults()
	st, scope, err := o.open(ctx, o.Dir)
	if err != nil {
		return err
	}
	const writers = 4
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for k := range writers {
		wg.Go(func() {
			mem := make([]byte, int64(o.ChainLen)*o.BlockBytes)
			for c := k; errs[k] == nil && ctx.Err() == nil; c += writers {
				keys := o.keys(c)
				req := &skep.PutRequest{Scope: scope}
				for i, key := range keys {
					b := mem[int64(i)*o.BlockBytes:][:o.BlockBytes]
					payload.Fill(b, key)
					req.Blocks = append(req.Blocks, skep.Block{Key: key, Parts: []skep.Part{{Bytes: b}}})
				}
				results, err := st.Put(ctx, req)
				for i, r := range results {
					if r.Outcome != skep.Committed && err == nil {
						err = &skep.Error{Op: "bench recover", Kind: r.Reason, Field: "block", Value: i, Limit: "committed"}
					}
				}
				if errs[k] = err; err == nil {
					mu.Lock()
					_, errs[k] = fmt.Fprintln(w, c)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, st.Close())...)
}

// Recover measures how long a store takes from kill -9 in mid-put to right answers.
func Recover(ctx context.Context, o RecoverOptions) (*RecoverResult, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("recover")
	if err != nil {
		return nil, err
	}
	defer remove()
	res := &RecoverResult{Bench: "recover", BlockBytes: o.BlockBytes, Devices: o.Devices, Seed: o.Seed,
		Limit:  "none: the goals are 2 s for 1 M blocks and 10 s for 10 M",
		Method: "a process of its own puts chains and is sent SIGKILL between two acknowledgements; the page cache is dropped where that is allowed; timed from the call of Open to the first lookup that found all of an acknowledged chain; then chains drawn at random among the acknowledged are looked up and every tenth restored and compared"}
	acked, err := o.writeAndKill(ctx, filepath.Join(dir, "store"), res)
	if err != nil {
		return nil, err
	}
	res.CachesDropped, res.CachesReason = dropCaches()
	o.Note("killed after %d blocks; opening", res.Blocks)
	return res, o.reopen(ctx, filepath.Join(dir, "store"), acked, res)
}

// writeAndKill has a child put blocks and kills it. It returns the chains the child
// said were acknowledged.
func (o *RecoverOptions) writeAndKill(ctx context.Context, dir string, res *RecoverResult) (acked []int, err error) {
	cmd, err := self.Command(ctx, o.Self, "recover-writer", "--dir", dir, "--block-size", strconv.FormatInt(o.BlockBytes, 10),
		"--chain-blocks", strconv.Itoa(o.ChainLen), "--file-devices", strconv.Itoa(o.Devices), "--seed", strconv.FormatUint(o.Seed, 10), "--backend", o.Backend)
	if err != nil {
		return nil, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	said := time.Now()
	lines := bufio.NewScanner(out)
	killed := false
	for lines.Scan() {
		c, err := strconv.Atoi(lines.Text())
		if err != nil {
			break // cut by the kill
		}
		acked = append(acked, c)
		if time.Since(said) > 3*time.Second {
			said = time.Now()
			o.Note("%d of %d blocks put", len(acked)*o.ChainLen, o.Blocks)
		}
		if !killed && len(acked)*o.ChainLen >= o.Blocks {
			res.WriteSeconds = time.Since(start).Seconds()
			killed = true
			if err := cmd.Process.Kill(); err != nil {
				return nil, err
			}
		}
	}
	err = cmd.Wait()
	if !killed {
		return nil, fmt.Errorf("the writing process ended by itself: %w: %s", err, firstLine(stderr.String()))
	}
	res.Blocks = int64(len(acked) * o.ChainLen)
	return acked, nil
}

// dropCaches empties the page cache.
func dropCaches() (bool, string) {
	syncAll()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return false, "page cache not dropped: " + err.Error()
	}
	return true, ""
}

func (o *RecoverOptions) reopen(ctx context.Context, dir string, acked []int, res *RecoverResult) (err error) {
	rng := rand.New(rand.NewPCG(o.Seed, 4))
	pick := func() []skep.Key { return o.keys(acked[rng.IntN(len(acked))]) }
	first := pick()
	start := time.Now()
	st, scope, err := o.open(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	res.OpenSeconds = time.Since(start).Seconds()
	// The first right answer is one that found all of a chain.
	for try := range 100 {
		found, err := st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: first, Lease: skep.NoLease})
		if err != nil {
			return err
		}
		if res.FirstLookup = time.Since(start).Seconds(); found.Blocks == len(first) {
			break
		}
		if try == 99 {
			return &skep.Error{Op: "bench recover", Kind: skep.NotFound, Field: "chains found whole", Value: 0, Limit: "1 of 100"}
		}
		first = pick()
	}
	mem := make([]byte, int64(o.ChainLen)*(o.BlockBytes+device.Align))
	for i := range o.Check {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		keys := pick()
		found, err := st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: keys, Lease: skep.NoLease})
		if err != nil {
			return err
		}
		res.ChainsChecked++
		res.Lost += int64(len(keys) - found.Blocks)
		if found.Blocks == len(keys) {
			res.ChainsWhole++
		}
		if i == o.Check-1 {
			res.AllLookups = time.Since(start).Seconds()
		}
		if i%10 == 0 && found.Blocks > 0 {
			if err := o.compare(ctx, st, scope, keys[:found.Blocks], mem, res); err != nil {
				return err
			}
		}
	}
	s, err := st.Stats(ctx)
	res.About = about(s)
	return err
}

// compare restores a chain and compares it.
func (o *RecoverOptions) compare(ctx context.Context, st skep.Store, scope skep.Scope, keys []skep.Key, mem []byte, res *RecoverResult) (err error) {
	stride := (o.BlockBytes + device.Align - 1) &^ (device.Align - 1)
	var landed []int
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: scope, Keys: keys, Dest: skep.Destination{Memory: mem, Stride: stride}}}}
	err = skep.Load(ctx, st, r, func(c *skep.Chunk) error {
		if c.Err != nil {
			res.Lost++ // found and not restorable
		} else {
			landed = append(landed, c.Block)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, b := range landed {
		res.Wrong += payload.Check(mem[int64(b)*stride:][:o.BlockBytes], keys[b])
		res.BytesCompared += o.BlockBytes
	}
	res.Restored++
	return nil
}
