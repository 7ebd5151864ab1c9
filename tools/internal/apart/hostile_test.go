//go:build linux

package apart

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/hostile"
)

var quiet = slog.New(slog.DiscardHandler)

const endedToken = "ended-token-0123456789abcdef"

// Clients that do their worst to three nodes, at the ports for clients and at those for nodes, harm nobody else and
// leave nothing; nobody joins who should not. make hostile runs it for long.
func TestHostileToACluster(t *testing.T) {
	t.Parallel()
	f := newFoe(t, "SKEP_HOSTILE_TIME")
	f.creds = credential("hostile", hostile.HostileTenant, hostile.TokenHostile, "read, write, admin", "") +
		credential("honest", hostile.HonestTenant, hostile.TokenHonest, "read, write", "") +
		credential("reader", hostile.HostileTenant, hostile.TokenReader, "read", "") +
		credential("ended", "*", endedToken, "read, write, admin", ", expires: 2020-01-01T00:00:00Z")
	f.prepare = func(_ int, n *node) { n.at[3] = freeport.Addr(t) }
	f.grow(3, "never")
	h := newIntruder(f)
	f.begin(f.r.Uint64())
	redis, err := hostile.NewHonest(h.target.Server.Addrs[hostile.Resp], f.r.Uint64())
	require.NoError(t, err)
	defer redis.Close()
	var before []map[string]float64
	was, err := f.nodes[0].agreedMap(t.Context())
	require.NoError(t, err)
	f.tellAll(toldCheck)
	f.pause()
	goOn := redis.Pause()
	for _, n := range f.nodes {
		held, err := n.holds(t.Context())
		f.is(err)
		before = append(before, held)
	}
	goOn()
	f.resume()
	f.well()

	seed := f.r.Uint64()
	ctx, stop := context.WithTimeout(t.Context(), f.lasts(2*time.Second))
	defer stop()
	var wg sync.WaitGroup
	counts := make([]atomic.Int64, len(h.players))
	for w := range 8 {
		wg.Go(func() {
			pick := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				i, one := pick.IntN(len(h.players)), pick.Uint64()
				within, cancel := context.WithTimeout(ctx, 10*time.Second)
				err := h.players[i].Play(within, h.target, rand.New(rand.NewPCG(one, 0)))
				cancel()
				counts[i].Add(1)
				if err != nil {
					f.is(fmt.Errorf("%s, play %d: %w", h.players[i].Name(), one, err))
					stop()
				}
			}
		})
	}
	most := map[string]float64{}
	wg.Go(func() {
		for ctx.Err() == nil {
			for i, n := range f.nodes {
				held, err := n.holds(ctx)
				if ctx.Err() != nil {
					return
				}
				if err == nil {
					err = keepsTo(held, before[i], most)
				}
				if err != nil {
					f.is(fmt.Errorf("node %s: %w", n.name, err))
					stop()
				}
			}
			rest(ctx, 100*time.Millisecond)
		}
	})
	wg.Wait()
	for i, p := range h.players {
		t.Logf("%s: %d plays", p.Name(), counts[i].Load())
	}
	t.Logf("most: %v", most)
	f.is(redis.Err())
	f.well()
	f.pause()
	defer redis.Pause()() // before it is closed
	t.Logf("honest client of RESP: %s", redis.Turn())
	failed, calls := f.failed()
	if f.long >= time.Minute {
		require.LessOrEqual(t, failed*100, calls, "honest calls that failed")
	}
	for i, n := range f.nodes {
		f.within("node "+n.name+" has as much as before", func(ctx context.Context) error {
			held, err := n.holds(ctx)
			if err != nil {
				return err
			}
			for _, x := range counted {
				if held[x.name] > before[i][x.name]+x.slack {
					return fmt.Errorf("%s is %v, and was %v", x.name, held[x.name], before[i][x.name])
				}
			}
			return nil
		})
		f.within("the map of "+n.name, func(ctx context.Context) error {
			now, err := n.agreedMap(ctx)
			if err == nil && !same(now, was) {
				f.t.Fatalf("the map was changed: %+v, it was %+v", now, was)
			}
			return err
		})
	}
	f.resume()
	f.tellAll(toldCheck)
	f.pause()
	f.is(redis.Check(t.Context()))
	f.whole()
	f.well()
}

func same(a, b *clustermap.Map) bool {
	x, e := a.Encode()
	y, g := b.Encode()
	return e == nil && g == nil && bytes.Equal(x, y)
}

// counted is what is as before when all have gone, but for so much: raft holds a few connections or none, and
// garbage waits to be collected.
var counted = []struct {
	name        string
	slack, most float64 // afterwards, and meanwhile
}{
	{"go_goroutines", 60, 6000},
	{"process_open_fds", 40, 1400},
	{"process_resident_memory_bytes", 300 << 20, 500 << 20},
}

// capped are what metrics say of memory, and of its cap: of the store's holders, of calls, sessions and RESP's values.
const memoryOf, capOf = "skep_memory_bytes{", "skep_memory_cap_bytes{"

// withinCaps is an error where a holder of memory has more than its cap and a twentieth, and notes the most.
func withinCaps(held, most map[string]float64) error {
	capped := 0
	look := func(name string, bytes, cap float64) error {
		capped++
		most[name+", of its cap"] = max(most[name+", of its cap"], bytes/cap)
		if bytes > cap*1.05 {
			return fmt.Errorf("%s: %v bytes, the cap is %v", name, bytes, cap)
		}
		return nil
	}
	for name, cap := range held {
		if holder, ok := strings.CutPrefix(name, capOf); ok {
			if err := look(holder, held[memoryOf+holder], cap); err != nil {
				return err
			}
		}
	}
	const calls = "skep_wire_memory_bytes{what="
	if err := look("calls", held[calls+`"used"}`], held[calls+`"cap"}`]); err != nil {
		return err
	}
	if capped < 3 {
		return fmt.Errorf("%d holders of memory have a cap: %v", capped, held)
	}
	return nil
}

// keepsTo is an error where a node has more than before and the cap, and notes the most.
func keepsTo(held, before, most map[string]float64) error {
	if err := withinCaps(held, most); err != nil {
		return err
	}
	for _, x := range counted {
		most[x.name] = max(most[x.name], held[x.name]-before[x.name])
		if held[x.name] > before[x.name]+x.most {
			return fmt.Errorf("%s is %v, and was %v", x.name, held[x.name], before[x.name])
		}
	}
	return nil
}

// intruder is who plays at the ports between nodes.
type intruder struct {
	f       *foe
	target  *hostile.Target
	players []hostile.Player
	of      [16]byte // the cluster
	ways    []*tls.Config
	cutAt   atomic.Int64
}

func newIntruder(f *foe) *intruder {
	h := &intruder{f: f}
	s := &hostile.Server{Addrs: map[string][]net.Addr{}}
	for _, n := range f.nodes {
		for p, at := range map[string]string{hostile.Wire: n.addr(), hostile.HTTP: n.at[2],
			hostile.Resp: n.at[3]} {
			a, err := net.ResolveTCPAddr("tcp", at)
			require.NoError(f.t, err)
			s.Addrs[p] = append(s.Addrs[p], a)
		}
	}
	h.target = &hostile.Target{Server: s}
	for _, p := range hostile.Players() {
		switch name := p.Name(); {
		case strings.HasPrefix(name, hostile.Wire), strings.HasPrefix(name, hostile.Resp), name == hostile.HTTP, name == "flood":
			h.players = append(h.players, p)
		}
	}
	h.players = append(h.players, asNode{h}, asNode{h}, nodeCutter{h}, nodeCrowd{h}, joiner{h})
	var said member.Added // who was a node once knows the cluster
	d := clustermap.Node{Name: "d", Addr: "127.0.0.1:1", Peer: "127.0.0.1:2", Weight: 1}
	require.NoError(f.t, f.nodes[0].asked(f.t.Context(), "cluster add", d, &said))
	require.NoError(f.t, f.nodes[0].asked(f.t.Context(), "cluster remove", d, new(member.Removed)))
	f.whole()
	b, err := hex.DecodeString(said.Cluster)
	require.NoError(f.t, err)
	require.Len(f.t, b, len(h.of))
	copy(h.of[:], b)
	ours, err := tls.LoadX509KeyPair(filepath.Join(f.dir, "a.pem"), filepath.Join(f.dir, "a.key"))
	require.NoError(f.t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(f.t, err)
	self := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(crand.Reader, self, self, key.Public(), key)
	require.NoError(f.t, err)
	strange := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	h.ways = []*tls.Config{nil, {}, {Certificates: []tls.Certificate{strange}}, {Certificates: []tls.Certificate{ours}},
		{Certificates: []tls.Certificate{ours}}}
	for _, w := range h.ways[1:] {
		w.InsecureSkipVerify = true
	}
	return h
}

// dial connects to a node's port for nodes: as nobody, as a stranger, with a certificate of the nodes' authority.
func (h *intruder) dial(ctx context.Context, n *node, way *tls.Config) (net.Conn, error) {
	at, err := net.ResolveTCPAddr("tcp", n.peer())
	if err != nil {
		return nil, err
	}
	c, err := h.target.DialAt(ctx, at)
	if err != nil || way == nil {
		return c, err
	}
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	s := tls.Client(c, way)
	if err := s.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return s, nil
}

func (h *intruder) node(r *rand.Rand) (*node, uint64) {
	i := r.IntN(len(h.f.nodes))
	return h.f.nodes[i], uint64(i + 1)
}

// greeting is what a connection between nodes begins with: mostly that of another cluster.
func (h *intruder) greeting(r *rand.Rand, kind byte, id uint64) (b []byte, ours bool) {
	of := h.of
	switch r.IntN(4) {
	case 0:
		of[r.IntN(len(of))]++
	case 1:
		of = [16]byte{}
	}
	if r.IntN(6) == 0 {
		id = uint64(r.IntN(5))
	}
	b = append([]byte("skr1"), kind)
	return binary.LittleEndian.AppendUint64(append(b, of[:]...), id), of == h.of
}

// calls are what nodes ask each other, none of which changes the map.
var calls = []string{`{}`, `{"load":true}`, `{"reach":1}`, `{"reach":99}`, `{"node":7}`, `{"propose":{}}`,
	`{"propose":{"do":"nope"}}`,
	`{"propose":{"do":"add","node":{}}}`, `{"propose":"x"}`, `{"renew":99}`, `null`, `[`, ``}

// talk is what comes after a greeting.
func talk(r *rand.Rand, kind byte) [][]byte {
	var out [][]byte
	for range 1 + r.IntN(4) {
		if kind == 'r' { // raft's calls: their number, and MessagePack whose counts are larger than what follows
			huge := [][]byte{{0xdf, 0xff, 0xff, 0xff, 0xff}, {0xdd, 0x7f, 0xff, 0xff, 0xff}, {0xdb, 0xff, 0xff, 0xff, 0xff},
				{0xc6, 0x7f, 0xff, 0xff, 0xff}, {0x81, 0xa7, 'E', 'n', 't', 'r', 'i', 'e', 's', 0xdd, 0x7f, 0xff, 0xff, 0xff, 0x80},
				{0x81, 0xa4, 'D', 'a', 't', 'a', 0xc6, 0x7f, 0xff, 0xff, 0xff}}
			out = append(out, append([]byte{byte(r.IntN(7))}, huge[r.IntN(len(huge))]...))
			continue
		}
		one := []byte(calls[r.IntN(len(calls))])
		switch r.IntN(8) {
		case 0:
			one = bytes.Repeat([]byte("["), 1<<r.IntN(16))
		case 1:
			one = fmt.Appendf(nil, `{"propose":{"do":"%s"}}`, bytes.Repeat([]byte("x"), 1<<r.IntN(20)))
		}
		n := uint32(len(one))
		if r.IntN(4) == 0 {
			n = []uint32{0, 1, n + 1, 1 << 20, 1<<31 - 1, 1<<32 - 1}[r.IntN(6)]
		}
		out = append(out, append(binary.LittleEndian.AppendUint32(nil, n), one...))
	}
	return out
}

// asNode says that it is a node.
type asNode struct{ h *intruder }

func (asNode) Name() string { return "as a node" }

func (p asNode) Play(ctx context.Context, _ *hostile.Target, r *rand.Rand) error {
	n, id := p.h.node(r)
	kind := []byte("rcwx")[r.IntN(4)]
	b, _ := p.h.greeting(r, kind, id)
	all := append([][]byte{b}, talk(r, kind)...)
	if r.IntN(2) == 0 {
		all = hostile.Mutate(r, all)
	}
	c, err := p.h.dial(ctx, n, p.h.ways[r.IntN(len(p.h.ways))])
	if err != nil {
		return nil // refused
	}
	return hostile.Deliver(ctx, r, c, bytes.Join(all, nil))
}

// nodeCutter ends what a node says at every byte in turn.
type nodeCutter struct{ h *intruder }

func (nodeCutter) Name() string { return "node-cut" }

func (p nodeCutter) Play(ctx context.Context, _ *hostile.Target, r *rand.Rand) error {
	for range 8 {
		n, id := p.h.node(r)
		b := append([]byte("skr1c"), p.h.of[:]...)
		b = binary.LittleEndian.AppendUint64(b, id)
		b = append(append(b, 13, 0, 0, 0), `{"load":true}`...)
		c, err := p.h.dial(ctx, n, p.h.ways[len(p.h.ways)-1])
		if err != nil {
			continue
		}
		if err := hostile.Deliver(ctx, r, c, b[:p.h.cutAt.Add(1)%int64(len(b)+1)]); err != nil {
			return err
		}
	}
	return nil
}

// nodeCrowd is more connections than a node has for other nodes, which say nothing, or begin to.
type nodeCrowd struct{ h *intruder }

func (nodeCrowd) Name() string { return "node-crowd" }

func (p nodeCrowd) Play(ctx context.Context, _ *hostile.Target, r *rand.Rand) error {
	n, id := p.h.node(r)
	way := p.h.ways[r.IntN(len(p.h.ways))]
	var hold []net.Conn
	defer func() {
		for _, c := range hold {
			_ = c.Close()
		}
	}()
	many := 1 + r.IntN(300)
	if way != nil {
		many = 1 + many/20 // handshakes take their time
	}
	for range many {
		c, err := p.h.dial(ctx, n, way)
		if err != nil {
			continue
		}
		hold = append(hold, c)
		b, _ := p.h.greeting(r, "rcw"[r.IntN(3)], id)
		_, _ = c.Write(b[:r.IntN(len(b)+1)])
	}
	rest(ctx, time.Duration(r.IntN(1500))*time.Millisecond)
	return nil
}

// joiner asks to change the map, with credentials that may not.
type joiner struct{ h *intruder }

func (joiner) Name() string { return "joiner" }

var errJoined = errors.New("somebody changed the cluster who may not")

func (p joiner) Play(ctx context.Context, _ *hostile.Target, r *rand.Rand) error {
	n, _ := p.h.node(r)
	token := []string{hostile.TokenHostile, hostile.TokenReader, endedToken, hostile.TokenWrong, "", p.h.f.secret("nodes"),
		p.h.f.secret("engine")}[r.IntN(7)]
	c, err := wire.Dial(ctx, wire.Options{Addr: n.addr(), Token: token, Conns: 1, Strict: true, Log: quiet})
	if err != nil {
		return nil // not let in
	}
	defer c.Close()
	if token == endedToken {
		return fmt.Errorf("%w: a token that has ended opens", errJoined)
	}
	name := []string{"d", "a", "b", ""}[r.IntN(4)]
	node := clustermap.Node{ID: uint64(r.IntN(5)), Name: name, Addr: "127.0.0.1:1", Peer: "127.0.0.1:2", Weight: 1}
	down := clustermap.Down
	for call, in := range map[string]any{"cluster add": node, "cluster remove": node, "cluster": struct{}{},
		"cluster join":   member.AskJoin{Node: node},
		"cluster set":    member.Change{Name: "b", State: &down, Weight: r.IntN(9)},
		"cluster rejoin": member.AskRejoin{Name: "a", ID: 1}, "cluster repair": member.AskRepair{Begin: true}} {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		if _, err := c.Admin(ctx, call, b); err == nil || errors.Is(err, skep.Conflict) || errors.Is(err, skep.NotFound) {
			return fmt.Errorf("%w: %s: %w", errJoined, call, errors.Join(err))
		}
	}
	return nil
}
