package bench

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/wire"
)

// WireOptions of Wire.
type WireOptions struct {
	Common
	ChainBytes  int64 // of the chain that comes from drives; larger than every cache
	DRAMBytes   int64 // of the chain that comes from the server's memory
	BlockBytes  int64
	Devices     int
	Keys        int // of a lookup
	Connections int // of the overload
	Seconds     float64
	Only        []string // of wireParts; empty: all
	Self        []string
}

// wireParts are what Wire measures, by names to choose from.
var wireParts = []string{"shared", "tcp", "tls", "lookup", "overload"}

// wants says whether a part is measured.
func (o *WireOptions) wants(part string) bool {
	return len(o.Only) == 0 || slices.Contains(o.Only, part)
}

func (o *WireOptions) validate() error {
	const op = "bench wire"
	for _, part := range o.Only {
		if !slices.Contains(wireParts, part) {
			return skep.Invalidf(op, "--only", part, strings.Join(wireParts, ", "))
		}
	}
	switch {
	case o.Connections < 1 || o.Connections > 10_000:
		return skep.Invalidf(op, "--connections", o.Connections, "1 to 10000")
	case o.Seconds <= 0 || o.Seconds > 600:
		return skep.Invalidf(op, "--seconds", o.Seconds, "more than 0, at most 600")
	case o.Keys < 1 || o.Keys > skep.MaxChainKeys:
		return skep.Invalidf(op, "--keys", o.Keys, fmt.Sprintf("1 to %d", skep.MaxChainKeys))
	case o.DRAMBytes < o.BlockBytes:
		return skep.Invalidf(op, "--dram", o.DRAMBytes, fmt.Sprintf("at least %d", o.BlockBytes))
	}
	c := o.chain()
	return c.validate()
}

func (o *WireOptions) chain() *ChainOptions {
	return &ChainOptions{Common: o.Common, Devices: []int{o.Devices}, ChainBytes: o.ChainBytes, BlockBytes: o.BlockBytes}
}

// WireRow is one figure beside its limit.
type WireRow struct {
	What      string  `json:"what"`         // what was measured
	Value     float64 `json:"value"`        // median, in the row's unit
	Unit      string  `json:"unit"`         // GB/s or µs
	Limit     float64 `json:"limit"`        // median of the limit, in the row's unit
	LimitName string  `json:"limit_name"`   // what it is: embedded, iperf3, a bare connection, crypto/tls on loopback
	Ratio     float64 `json:"ratio"`        // value ÷ limit
	CPU       float64 `json:"cpu_s_per_gb"` // of client and server together; 0 for lookups (s/GB)
	Goal      string  `json:"goal"`         // of the ratio, or of the value where it has a unit

	Samples []float64 `json:"samples"`       // a round each, in the row's unit
	Limits  []float64 `json:"limit_samples"` // a round each (unit)
	cpus    []float64
}

// WireResult is what Wire measured.
type WireResult struct {
	About
	Rounds   int          `json:"rounds"`   // rounds, of which medians are given
	Method   string       `json:"method"`   // how it was measured
	Rows     []WireRow    `json:"rows"`     // what was measured
	Overload WireOverload `json:"overload"` // more asked for than can be served
}

// Wire measures the network client against the embedded store, the loopback and
// itself when overloaded. Server and client are processes of their own.
func Wire(ctx context.Context, o WireOptions) (_ *WireResult, err error) {
	if runtime.GOOS != "linux" {
		return nil, &skep.Error{Op: "bench wire", Kind: skep.Unsupported, Field: "system", Value: runtime.GOOS, Limit: "linux"}
	}
	o.EnsureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("wire")
	if err != nil {
		return nil, err
	}
	defer remove()
	w := &wireBench{WireOptions: o, dir: dir}
	defer func() {
		failed := err
		err = errors.Join(err, w.stop())
		for _, s := range w.server {
			if said := s.said.String(); failed != nil && said != "" {
				err = fmt.Errorf("%w; the server says: %s", err, said)
			}
		}
	}()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	rows := w.rows()
	for round := range o.Rounds {
		o.Note("round %d of %d", round+1, o.Rounds)
		for i := range rows {
			if err := rows[i].round(ctx, &rows[i].WireRow); err != nil {
				return nil, fmt.Errorf("%s: %w", rows[i].What, err)
			}
		}
	}
	res := &WireResult{About: w.about, Rounds: o.Rounds, Rows: []WireRow{},
		Method: fmt.Sprintf("skep serve in a process of its own; chains of blocks of %d bytes restored by three overlapping sessions of %d MiB each, every byte checked by the client as it comes, and compared once before the rounds; in turns with the limit: the same chain in an embedded store on drives beside, iperf3 (a bare connection where it is not installed) with as many connections, crypto/tls on loopback, the same lookup embedded", o.BlockBytes, regionBytes>>20)}
	for i := range rows {
		r := &rows[i].WireRow
		r.Value, r.Limit, r.CPU = middle(r.Samples), middle(r.Limits), middle(r.cpus)
		r.Ratio = Div(r.Value, r.Limit)
		res.Rows = append(res.Rows, *r)
	}
	if w.wants("overload") {
		o.Note("overload")
		res.Overload, err = w.overload(ctx)
	}
	return res, err
}

// middle is the median; the lower of two.
func middle(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return v[(len(v)-1)/2]
}

// wireServer is a skep serve and how to reach it.
type wireServer struct {
	*respServer
	unix string
	http string // where its metrics are
}

func (s *wireServer) options(unix bool) wire.Options {
	o := wire.Options{Addr: s.addr, Strict: true, Patience: 5 * time.Minute, Name: "bench"}
	if unix {
		o.Addr = "unix:" + s.unix
	}
	if s.tls != nil && !unix {
		o.TLS = &tls.Config{RootCAs: s.tls.RootCAs, MinVersion: tls.VersionTLS13}
	}
	return o
}

type wireBench struct {
	WireOptions
	dir    string
	about  About
	server []*wireServer

	embedded *chainStore   // on drives
	drives   *wireServer   // the same chain, without DRAM tier
	shared   *chainStore   // client of drives, in shared memory
	dram     *wireServer   // a chain in its DRAM tier
	secure   *wireServer   // the same over TLS
	tcp      []*chainStore // clients of dram, by number of connections
	tls      *chainStore   // client of secure
	looker   *wire.Client  // over the Unix socket
	local    skep.Store    // that the same lookup is made in
	chains   map[skep.Store]*skep.LookupRequest
	closers  []func() error
}

func (w *wireBench) stop() (err error) {
	for i := len(w.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, w.closers[i]())
	}
	for _, s := range w.server {
		s.stop()
	}
	return err
}

// serve starts skep serve on a new store.
func (w *wireBench) serve(ctx context.Context, name string, dram int64, secure bool) (*wireServer, error) {
	dir := filepath.Join(w.dir, name)
	s := &wireServer{respServer: &respServer{said: &tail{}}, unix: filepath.Join(w.dir, name+".sock")}
	cmd, err := self.Command(ctx, w.Self, "serve", "--json", "--log", "error", "--dir", dir, "--file-devices", strconv.Itoa(w.Devices),
		"--dram", strconv.FormatInt(dram, 10), "--listen", "127.0.0.1:0", "--unix", s.unix, "--resp", "none", "--http", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, "SKEP_STORE_BACKEND="+w.Backend)
	if secure {
		cert, key, err := s.certificate(w.dir)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, "SKEP_TLS_CERT="+cert, "SKEP_TLS_KEY="+key)
	}
	cmd.Stderr = s.said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.cmd = cmd
	w.server = append(w.server, s)
	var ready struct {
		Listeners []struct{ Protocol, Address string } `json:"listeners"`
	}
	if err := json.NewDecoder(out).Decode(&ready); err != nil {
		return nil, fmt.Errorf("skep serve did not start: %w: %s", err, s.said)
	}
	for _, l := range ready.Listeners {
		switch {
		case l.Protocol == "http":
			s.http = l.Address
		case !strings.Contains(l.Address, "/"):
			s.addr = l.Address
		}
	}
	if s.addr == "" {
		return nil, fmt.Errorf("skep serve listens on %v", ready.Listeners)
	}
	return s, nil
}

// client opens a chain of bytes through a client of s.
func (w *wireBench) client(ctx context.Context, o wire.Options, bytes int64) (*chainStore, error) {
	c, err := wire.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	w.closers = append(w.closers, c.Close)
	cs := &chainStore{st: c, size: w.BlockBytes}
	ns, err := c.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "default", Name: "bench", Model: "payload-1", Shape: shapeOf(w.BlockBytes), Chained: true})
	if err != nil {
		return nil, err
	}
	cs.scope.Namespace = ns.ID
	for i := range regions {
		m, err := c.Alloc(ctx, regionBytes)
		if err != nil {
			return nil, err
		}
		w.closers = append(w.closers, func() error { m.Release(); return nil })
		cs.mem[i] = m.Bytes()
		clear(cs.mem[i]) // touched, so that no page is found in the rounds
	}
	for i := range bytes / w.BlockBytes {
		cs.keys = append(cs.keys, skep.KeyOf(fmt.Appendf(nil, "bench chain %d", i)))
	}
	return cs, nil
}

// start starts what the parts that are measured need.
func (w *wireBench) start(ctx context.Context) (err error) {
	if w.wants("shared") {
		err = w.startDrives(ctx)
	}
	if err == nil && (w.wants("tcp") || w.wants("lookup") || w.wants("overload")) {
		err = w.startDRAM(ctx)
	}
	if err == nil && w.wants("tls") {
		err = w.startTLS(ctx)
	}
	if err == nil && w.wants("lookup") {
		err = w.startLookup(ctx)
	}
	return err
}

// startDrives puts a chain on drives, into an embedded store and into a server's.
func (w *wireBench) startDrives(ctx context.Context) (err error) {
	w.Note("putting %.1f GB twice", float64(w.ChainBytes)/1e9)
	if w.embedded, err = w.WireOptions.chain().open(ctx, filepath.Join(w.dir, "embedded"), w.Devices); err != nil {
		return err
	}
	w.closers = append(w.closers, w.embedded.close)
	if w.drives, err = w.serve(ctx, "drives", 0, false); err != nil {
		return err
	}
	o := w.drives.options(true)
	o.SharedMemory = regions * regionBytes
	if w.shared, err = w.client(ctx, o, w.ChainBytes); err != nil {
		return err
	}
	for _, c := range []*chainStore{w.embedded, w.shared} {
		if err := errors.Join(c.fill(ctx), c.check(ctx, skep.HeadFirst)); err != nil {
			return err
		}
	}
	return w.tell(ctx, w.embedded.st)
}

// tell notes what moves a store's bytes.
func (w *wireBench) tell(ctx context.Context, st skep.Store) error {
	stats, err := st.Stats(ctx)
	w.about = about(stats)
	return err
}

// startDRAM puts a chain into a server's memory.
func (w *wireBench) startDRAM(ctx context.Context) (err error) {
	if w.dram, err = w.serve(ctx, "dram", 2*w.DRAMBytes, false); err != nil {
		return err
	}
	for _, n := range []int{1, 4} {
		o := w.dram.options(false)
		o.Conns = n
		c, err := w.client(ctx, o, w.DRAMBytes)
		if err != nil {
			return err
		}
		w.tcp = append(w.tcp, c)
	}
	c := w.tcp[0]
	if err := errors.Join(c.fill(ctx), c.warm(ctx), c.check(ctx, skep.HeadFirst)); err != nil {
		return err
	}
	return w.tell(ctx, c.st)
}

// startTLS puts the same chain into the memory of a server with TLS.
func (w *wireBench) startTLS(ctx context.Context) (err error) {
	if w.secure, err = w.serve(ctx, "tls", 2*w.DRAMBytes, true); err != nil {
		return err
	}
	o := w.secure.options(false)
	o.Conns = 1
	if w.tls, err = w.client(ctx, o, w.DRAMBytes); err != nil {
		return err
	}
	if err := errors.Join(w.tls.fill(ctx), w.tls.warm(ctx), w.tls.check(ctx, skep.HeadFirst)); err != nil {
		return err
	}
	return w.tell(ctx, w.tls.st)
}

// warm restores the chain and requires that it comes out of memory the second time.
func (c *chainStore) warm(ctx context.Context) error {
	for range 2 {
		tiers := map[skep.Tier]int{}
		r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys}}}
		if err := skep.Load(ctx, c.st, r, func(ch *skep.Chunk) error { tiers[ch.Tier]++; return ch.Err }); err != nil {
			return err
		}
		if tiers[skep.TierDRAM] == len(c.keys) {
			return nil
		}
	}
	return &skep.Error{Op: "bench wire", Kind: skep.Evicted, Field: "chain", Value: "not all in memory", Limit: "in the DRAM tier"}
}

// startLookup puts a chain of small blocks into an embedded store and a server's.
func (w *wireBench) startLookup(ctx context.Context) (err error) {
	if w.looker, err = wire.Dial(ctx, w.dram.options(true)); err != nil {
		return err
	}
	w.closers = append(w.closers, w.looker.Close)
	st, err := store.Open(ctx, store.Options{Dir: filepath.Join(w.dir, "lookup"), DeviceCount: 1, Logger: w.Log})
	if err != nil {
		return err
	}
	w.local = st
	w.closers = append(w.closers, st.Close)
	w.chains = map[skep.Store]*skep.LookupRequest{}
	block := make([]byte, 4<<10) // as bench lookup's: of one in its record a lookup reads that
	for _, st := range []skep.Store{st, w.looker} {
		ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "default", Name: "lookup", Shape: skep.Shape{BlockTokens: 16, Bytes: int64(len(block))}, Chained: true})
		if err != nil {
			return err
		}
		req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
		look := &skep.LookupRequest{Scope: req.Scope, Lease: skep.NoLease}
		w.chains[st] = look
		for i := range w.Keys {
			k := skep.KeyOf(fmt.Appendf(nil, "lookup %d", i))
			look.Keys = append(look.Keys, k)
			req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: block}}})
		}
		if _, err := st.Put(ctx, req); err != nil {
			return err
		}
	}
	return nil
}

// wireRow is a row and how a round of it and of its limit is measured.
type wireRow struct {
	WireRow
	round func(ctx context.Context, r *WireRow) error
}

// rows are the figures of the parts that are measured.
func (w *wireBench) rows() (rows []wireRow) {
	if w.wants("shared") {
		rows = append(rows, wireRow{WireRow{What: "restore into shared memory, from drives", Unit: "GB/s", LimitName: "embedded", Goal: "≥ 0.95"},
			func(ctx context.Context, r *WireRow) error {
				if err := w.restore(ctx, w.shared, w.drives, r, &r.Samples); err != nil {
					return err
				}
				return w.restore(ctx, w.embedded, nil, r, &r.Limits)
			}})
	}
	for i, n := range []int{1, 4} {
		if !w.wants("tcp") {
			break
		}
		rows = append(rows, wireRow{WireRow{What: fmt.Sprintf("restore over TCP, from memory, %d connections", n), Unit: "GB/s", LimitName: loopName(), Goal: "≥ 0.9"},
			func(ctx context.Context, r *WireRow) error {
				if err := w.restore(ctx, w.tcp[i], w.dram, r, &r.Samples); err != nil {
					return err
				}
				return w.iperf(ctx, n, r)
			}})
	}
	if w.wants("tls") {
		rows = append(rows, wireRow{WireRow{What: "restore over TLS 1.3, from memory, 1 connection", Unit: "GB/s", LimitName: "crypto/tls on loopback", Goal: "≥ 0.8"},
			func(ctx context.Context, r *WireRow) error {
				if err := w.restore(ctx, w.tls, w.secure, r, &r.Samples); err != nil {
					return err
				}
				return w.bare(ctx, true, 1, r)
			}})
	}
	if w.wants("lookup") {
		rows = append(rows, wireRow{WireRow{What: fmt.Sprintf("lookup of %d keys over a Unix socket, p50", w.Keys), Unit: "µs", LimitName: "embedded", Goal: "≤ 120 µs"},
			func(ctx context.Context, r *WireRow) error {
				if err := w.lookups(ctx, w.looker, &r.Samples); err != nil {
					return err
				}
				return w.lookups(ctx, w.local, &r.Limits)
			}})
	}
	return rows
}

// restore times one pass over a chain. s is the server, whose CPU counts too.
func (w *wireBench) restore(ctx context.Context, c *chainStore, s *wireServer, r *WireRow, into *[]float64) error {
	var before float64
	var err error
	if s != nil {
		if before, err = s.cpu(); err != nil {
			return err
		}
	}
	smp, err := timed(func() (int64, int64, error) {
		var n int64
		for began := time.Now(); ; {
			err := c.pieces(ctx, func(ctx context.Context, mem []byte, p skep.Range) error { return c.load(ctx, mem, p, skep.HeadFirst) })
			if n += c.bytes(); err != nil || time.Since(began).Seconds() >= w.Seconds {
				return n, 1, err
			}
		}
	})
	if err != nil {
		return err
	}
	*into = append(*into, smp.GBps())
	if s != nil {
		after, err := s.cpu()
		if err != nil {
			return err
		}
		smp.CPUSeconds += after - before
		r.cpus = append(r.cpus, smp.CPUPerGB())
	}
	return nil
}

func (w *wireBench) lookups(ctx context.Context, st skep.Store, into *[]float64) error {
	var took []float64
	for began := time.Now(); time.Since(began).Seconds() < w.Seconds; {
		at := time.Now()
		res, err := st.Lookup(ctx, w.chains[st])
		took = append(took, us(time.Since(at)))
		if err != nil {
			return err
		}
		if res.Blocks != w.Keys {
			return &skep.Error{Op: "bench wire", Kind: skep.NotFound, Field: "blocks found", Value: res.Blocks, Limit: w.Keys}
		}
	}
	*into = append(*into, middle(took))
	return nil
}

func loopName() string {
	if _, err := exec.LookPath("iperf3"); err == nil {
		return "iperf3"
	}
	return "a bare connection"
}
