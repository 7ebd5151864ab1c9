package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

var quiet = log.New(io.Discard, "", 0)

// Player is a kind of hostile client.
type Player interface {
	Name() string
	// Play does one piece of mischief and closes what it opened. What goes wrong for it is its own affair: an error says that the server
	// did wrong, by telling it what is another's, for example.
	Play(ctx context.Context, t *Target, r *rand.Rand) error
}

// Players are all there are.
func Players() []Player {
	return append([]Player{respPlayer{}, respCutter{}, httpPlayer{}, flooder{}, wirePlayer{}, wireCutter{}, wireCrowd{}}, unixPlayers()...)
}

// MaxPlayerBytes is the most memory a player may hold at a time.
const MaxPlayerBytes = 8 << 20

// Target is what players know of a server.
type Target struct {
	Server *Server
	open   atomic.Int64 // connections players have open
	plays  atomic.Int64
	now    atomic.Int64 // plays under way
	mu     sync.Mutex
	spaces [2]uint32
}

func (t *Target) playing() int64 { return t.now.Load() }

// Dial connects over TCP or a Unix socket. Who is refused gets an error.
func (t *Target) Dial(ctx context.Context, protocol string, r *rand.Rand) (net.Conn, error) {
	addrs := t.Server.Addrs[protocol]
	return t.DialAt(ctx, addrs[r.IntN(len(addrs))])
}

// DialAt connects to one of Server.Addrs.
func (t *Target) DialAt(ctx context.Context, at net.Addr) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, at.Network(), at.String())
	if err != nil {
		return nil, err
	}
	t.open.Add(1)
	return &counted{Conn: c, t: t}, nil
}

// counted is a connection of a player.
type counted struct {
	net.Conn
	t    *Target
	once sync.Once
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(func() { c.t.open.Add(-1) })
	return c.Conn.Close()
}

// Plain is the connection as package net has it: a *net.TCPConn or *net.UnixConn.
func Plain(c net.Conn) net.Conn {
	if x, ok := c.(*counted); ok {
		return x.Conn
	}
	return c
}

// Secret is in every value of the honest tenant: who else sees it has been told what is another's.
var Secret = []byte("none of the hostile tenant's business")

// ErrLeak says that a player was told what is another tenant's.
var ErrLeak = errors.New("the honest tenant's bytes came to a hostile client")

// Watcher looks for Secret in what is written to it.
type Watcher struct {
	tail  []byte
	found bool
}

// Write implements io.Writer.
func (w *Watcher) Write(p []byte) (int, error) {
	b := append(w.tail, p...)
	w.found = w.found || bytes.Contains(b, Secret)
	w.tail = append(w.tail[:0], b[max(0, len(b)-len(Secret)+1):]...)
	return len(p), nil
}

// Err is ErrLeak when Secret was seen.
func (w *Watcher) Err() error {
	if w.found {
		return ErrLeak
	}
	return nil
}

// Options of a Run. Zero fields take what Run's environment says.
type Options struct {
	Players []Player      // all
	Oracles []Oracle      // all
	Workers int           // plays at once; 12
	For     time.Duration // SKEP_HOSTILE_TIME, or 2 s
	Seed    uint64        // SKEP_SEED, or drawn
	Compare bool          // the honest clients' p99 with that beside as many polite ones; from half a minute on
}

// Run plays against a server of st and requires that it did nobody else any harm.
func Run(t testing.TB, st skep.Store, o Options) {
	t.Helper()
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
		if v := os.Getenv("SKEP_SEED"); v != "" {
			seed, err := strconv.ParseUint(v, 10, 64)
			require.NoError(t, err)
			o.Seed = seed
		}
	}
	if o.For == 0 {
		o.For = 2 * time.Second
		if v := os.Getenv("SKEP_HOSTILE_TIME"); v != "" {
			d, err := time.ParseDuration(v)
			require.NoError(t, err)
			o.For, o.Compare = d, d >= 30*time.Second
		}
	}
	t.Logf("SKEP_SEED=%d, for %v", o.Seed, o.For)
	dir, err := os.MkdirTemp("", "skep-hostile")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	s, err := Serve(st, dir)
	require.NoError(t, err)
	report, err := play(s, o)
	t.Log(report)
	require.NoError(t, errors.Join(err, s.Close()))
}

// only is the player and seed that SKEP_HOSTILE_PLAY names.
func only(players []Player) ([]Player, uint64, error) {
	v := os.Getenv("SKEP_HOSTILE_PLAY")
	if v == "" {
		return players, 0, nil
	}
	name, num, _ := strings.Cut(v, ":")
	seed, err := strconv.ParseUint(num, 10, 64)
	for _, p := range players {
		if p.Name() == name && err == nil {
			return []Player{p}, seed, nil
		}
	}
	return nil, 0, fmt.Errorf("SKEP_HOSTILE_PLAY=%s: want player:seed", v)
}

// playFor is how long one play may take.
const playFor = 10 * time.Second

// play has everybody play against s, and says how it went.
func play(s *Server, o Options) (report string, err error) {
	if o.Players == nil {
		o.Players = Players()
	}
	if o.Oracles == nil {
		o.Oracles = Oracles()
	}
	if o.Workers == 0 {
		o.Workers = 12
	}
	players, again, err := only(o.Players)
	if err != nil {
		return "", err
	}
	t := &Target{Server: s}
	books, err := openBooks(s, o.Seed)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, books.close()) }()
	books.warm()
	if err := books.err(); err != nil {
		return "", err
	}
	alone := books.turn()
	if o.Compare { // how long honest calls take beside as many others that are polite
		run(t, o.Workers, o.For/5, func(ctx context.Context, pick *rand.Rand) error { return polite{}.Play(ctx, t, pick) }, o.Seed, func() {})
		alone = books.turn()
	}
	resume := books.pause()
	for _, x := range o.Oracles {
		err = errors.Join(err, x.Begin(t))
	}
	resume()
	if err != nil {
		return "", err
	}

	var all problems
	counts := make([]atomic.Int64, len(players))
	run(t, o.Workers, o.For, func(ctx context.Context, pick *rand.Rand) error {
		i, seed := pick.IntN(len(players)), pick.Uint64()
		if again != 0 {
			seed = again
		}
		err := players[i].Play(ctx, t, rand.New(rand.NewPCG(seed, 0)))
		counts[i].Add(1)
		t.plays.Add(1)
		if err != nil {
			err = fmt.Errorf("SKEP_HOSTILE_PLAY=%s:%d: %w", players[i].Name(), seed, err)
			all.add(err)
		}
		return err
	}, o.Seed, func() {
		for _, x := range o.Oracles {
			if err := x.Look(t); err != nil {
				all.add(fmt.Errorf("%s: %w", x.Name(), err))
			}
		}
	})
	beside := books.turn()
	all.add(books.err())
	defer books.pause()()
	for _, x := range o.Oracles {
		if err := x.End(t); err != nil {
			all.add(fmt.Errorf("%s: %w", x.Name(), err))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d plays:", t.plays.Load())
	for i, p := range players {
		fmt.Fprintf(&b, " %s %d", p.Name(), counts[i].Load())
	}
	fmt.Fprintf(&b, "\nhonest clients before:  %v\nhonest clients besides: %v", alone, beside)
	if o.Compare {
		all.add(slower(alone, beside))
	}
	return b.String(), all.err()
}

// run has so many workers play for so long, or until one play fails, and looks now and again.
func run(t *Target, workers int, long time.Duration, play func(ctx context.Context, pick *rand.Rand) error, seed uint64, look func()) {
	ctx, stop := context.WithTimeout(context.Background(), long)
	defer stop()
	var wg, looking sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			pick := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				one, cancel := context.WithTimeout(ctx, playFor)
				t.now.Add(1)
				if play(one, pick) != nil {
					stop()
				}
				t.now.Add(-1)
				cancel()
			}
		})
	}
	looking.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				look()
			}
		}
	})
	wg.Wait()
	looking.Wait()
}

// problems are the first few of all there were.
type problems struct {
	mu   sync.Mutex
	list []error
}

func (p *problems) add(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && len(p.list) < 10 {
		p.list = append(p.list, err)
	}
}

func (p *problems) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.list...)
}
