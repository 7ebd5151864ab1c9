//go:build unix

package books

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/wire"
)

// player is a client of one protocol. Errors that pass, and after which nobody knows what became of the call, are errAgain.
type player interface {
	put(ctx context.Context, key string, value []byte) error
	get(ctx context.Context, key string) (value []byte, found bool, err error)
	del(ctx context.Context, key string) error
	close()
}

// errAgain is an error that the documents name and that passes.
var errAgain = errors.New("again")

// job is what a client's process is told.
type job struct {
	Name     string
	Protocol string // tcp, unix, shm, resp, http
	Dir      string // of the books; file life says how often the server was started
	At       map[string]string
	Seed     uint64
	Check    bool // only look, once, at everything
}

const (
	clientKeys  = 24
	callTimeout = 30 * time.Second
)

// client plays until its standard input ends, then looks at every key once more. What is wrong it prints.
func client(j *job) int {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	b, err := openBook(filepath.Join(j.Dir, j.Name+".book"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	c := &keeper{job: j, book: b, rng: rand.New(rand.NewPCG(j.Seed, 2))}
	defer c.hangUp()
	var calls int
	for !j.Check {
		select {
		case <-ended:
			j.Check = true
			continue
		default:
		}
		if err := c.play(); err != nil {
			fmt.Printf("%s (%s, seed %d, after %d calls): %v\n", j.Name, j.Protocol, j.Seed, calls, err)
			return 1
		}
		calls++
	}
	keys := slices.Sorted(mapKeys(b.keys))
	for i := 0; i < len(keys); {
		again, err := c.look(keys[i])
		if err != nil {
			fmt.Printf("%s (%s, seed %d), at the end: %v\n", j.Name, j.Protocol, j.Seed, err)
			return 1
		}
		if !again {
			i++
		}
	}
	there := 0
	for _, h := range b.keys {
		if !h.may[value{}] {
			there++
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %d calls, %d refused or unanswered, %d keys, %d of them acknowledged as stored, %d misses of a cache\n", j.Name, c.calls, c.again, len(keys), there, c.gone)
	return 0
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// keeper is a client that keeps a book.
type keeper struct {
	*job
	book *book
	rng  *rand.Rand
	p    player
	life int // of the server that p spoke to first

	calls, again, gone int
}

func (c *keeper) cache() bool { return c.Protocol == "resp" }

// now is the server's present life.
func (c *keeper) now() int {
	b, _ := os.ReadFile(filepath.Join(c.Dir, "life"))
	n, _ := strconv.Atoi(string(b))
	return n
}

func (c *keeper) hangUp() {
	if c.p != nil {
		c.p.close()
		c.p = nil
	}
}

// dial connects anew when there is no connection, or one to a server that is no more.
func (c *keeper) dial() error {
	life := c.now()
	if life != c.life {
		c.hangUp()
		c.book.restarted(c.cache()) // a client that was killed does not know whether the server was
		c.life = life
	}
	if c.p != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	p, err := c.connect(ctx)
	if err != nil {
		return again(err)
	}
	c.p = p
	return nil
}

// pass is what is done about an error: nil where it passes.
func (c *keeper) pass(err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, errAgain) {
		return err
	}
	c.again++
	c.hangUp()
	time.Sleep(20 * time.Millisecond)
	return nil
}

// play makes one call.
func (c *keeper) play() error {
	if err := c.dial(); err != nil {
		return c.pass(err)
	}
	c.calls++
	key := fmt.Sprintf("%s/%d", c.Name, c.rng.IntN(clientKeys))
	h := c.book.of(key)
	draw := c.rng.IntN(100)
	if draw < 50 || h.life != 0 && h.life == c.life { // a call that has no answer may still be carried out
		_, err := c.look(key)
		return err
	}
	e := entry{Key: key, Step: asked, Life: c.life}
	if draw < 90 {
		c.book.next++
		e.Version, e.Size = c.book.next, c.size()
	}
	if err := c.book.write(e); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var err error
	if e.Version > 0 {
		err = c.p.put(ctx, key, valueOf(key, value{e.Version, e.Size}))
	} else {
		err = c.p.del(ctx, key)
	}
	e.Step = done
	if err != nil {
		e.Step = refused
	}
	if err := c.book.write(e); err != nil {
		return err
	}
	if err := c.pass(err); err != nil {
		return fmt.Errorf("%s, version %d: %w", key, e.Version, err)
	}
	return nil
}

// look reads a key and compares. Again: there was no answer.
func (c *keeper) look(key string) (noAnswer bool, err error) {
	if err := c.dial(); err != nil {
		return true, c.pass(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	got, found, err := c.p.get(ctx, key)
	if err != nil {
		if err = c.pass(err); err != nil {
			err = fmt.Errorf("reading %s: %w", key, err)
		}
		return true, err
	}
	if !found && c.cache() && !c.book.of(key).may[value{}] {
		c.gone++
	}
	return false, c.book.check(key, got, found, c.cache())
}

// size draws what is small, a page, some pages, or more than a unit.
func (c *keeper) size() int {
	most := []int{400, 5000, 70_000, 300_000, 1_300_000}[c.rng.IntN(5)]
	return 16 + c.rng.IntN(most)
}

func (c *keeper) connect(ctx context.Context) (player, error) {
	switch c.Protocol {
	case "resp":
		return &redisPlayer{redistest.New(redistest.Options{Addr: c.At["resp"], Timeout: callTimeout})}, nil
	case "tcp", "http":
		p, err := dialWire(ctx, c.Name, wire.Options{Addr: c.At["wire"], Strict: true, Timeout: callTimeout})
		if err == nil && c.Protocol == "http" {
			return &webPlayer{p, "http://" + c.At["http"], &http.Client{Timeout: callTimeout}}, nil
		}
		return p, err
	case "unix":
		return dialWire(ctx, c.Name, wire.Options{Addr: c.At["unix"], Strict: true, Timeout: callTimeout})
	case "shm":
		return dialWire(ctx, c.Name, wire.Options{Addr: c.At["unix"], Strict: true, Timeout: callTimeout, SharedMemory: 16 << 20})
	}
	return nil, fmt.Errorf("no protocol %q", c.Protocol)
}

// again marks an error that passes, by what docs/reference/protocol.md says of its kind.
func again(err error) error {
	if err == nil {
		return nil
	}
	switch skep.KindOf(err) {
	case skep.Unavailable, skep.Overloaded, skep.Full, skep.NoMemory, skep.Deadline, skep.Closed, skep.NotReleased:
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// wirePlayer speaks the binary protocol.
type wirePlayer struct {
	*wire.Client
	space skep.NamespaceID
	shm   bool
}

func dialWire(ctx context.Context, name string, o wire.Options) (*wirePlayer, error) {
	c, err := wire.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	info, err := c.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "default", Name: "books/" + name, Class: skep.Durable, Copies: 2, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &wirePlayer{c, info.ID, o.SharedMemory > 0}, nil
}

func (p *wirePlayer) close() { _ = p.Client.Close() }

func (p *wirePlayer) scope() skep.Scope { return skep.Scope{Namespace: p.space} }

func (p *wirePlayer) put(ctx context.Context, key string, value []byte) error {
	bytes := value
	if p.shm {
		m, err := p.Alloc(ctx, int64(len(value)))
		if err != nil {
			return again(err)
		}
		defer m.Release()
		bytes = m.Bytes()[:copy(m.Bytes(), value)]
	}
	res, err := p.Put(ctx, &skep.PutRequest{Scope: p.scope(), Blocks: []skep.Block{{Key: skep.KeyOf([]byte(key)), Parts: []skep.Part{{Bytes: bytes}}}}})
	if err != nil {
		return again(err)
	}
	switch res[0].Outcome {
	case skep.Committed:
		return nil
	case skep.Declined:
		return again(&skep.Error{Op: "put", Kind: res[0].Reason})
	}
	return fmt.Errorf("put: outcome %v", res[0].Outcome)
}

func (p *wirePlayer) del(ctx context.Context, key string) error {
	_, err := p.Delete(ctx, p.scope(), []skep.Key{skep.KeyOf([]byte(key))})
	return again(err)
}

func (p *wirePlayer) get(ctx context.Context, key string) (value []byte, found bool, err error) {
	chain := skep.Chain{Scope: p.scope(), Keys: []skep.Key{skep.KeyOf([]byte(key))}}
	var dest []byte
	if p.shm {
		m, err := p.Alloc(ctx, 2<<20)
		if err != nil {
			return nil, false, again(err)
		}
		defer m.Release()
		dest = m.Bytes()
		chain.Dest = skep.Destination{Memory: dest, Stride: int64(len(dest))}
	}
	s, err := p.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{chain}})
	if err != nil {
		return nil, false, again(err)
	}
	defer func() { err = errors.Join(err, again(s.Close(context.WithoutCancel(ctx)))) }()
	var chunks [4]skep.Chunk
	for {
		n, err := s.Next(ctx, chunks[:])
		if err == io.EOF {
			return value, found, nil
		}
		if err != nil {
			return nil, false, again(err)
		}
		for i := range chunks[:n] {
			ch := &chunks[i]
			switch {
			case ch.Err == nil && p.shm:
				value, found = append(value, dest[:ch.Bytes]...), true
			case ch.Err == nil:
				found = true
				for _, d := range ch.Data {
					value = append(value, d...)
				}
			case skep.KindOf(ch.Err) != skep.NotFound:
				err = errors.Join(err, again(ch.Err))
			}
			ch.Release()
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// webPlayer deletes and looks up over HTTP; bytes go by the binary protocol.
type webPlayer struct {
	*wirePlayer
	url string
	c   *http.Client
}

func (p *webPlayer) ask(ctx context.Context, path, key string, into any) error {
	id := skep.KeyOf([]byte(key))
	body, err := json.Marshal(map[string]any{"namespace": uint32(p.space), "keys": []string{hex.EncodeToString(id[:])}})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := p.c.Do(r)
	if err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil, res.StatusCode == http.StatusServiceUnavailable, res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusGatewayTimeout, res.StatusCode == http.StatusInsufficientStorage:
		return fmt.Errorf("%w: %s %s %w", errAgain, res.Status, text, errors.Join(err))
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s: %s", path, res.Status, text)
	}
	return json.Unmarshal(text, into)
}

func (p *webPlayer) del(ctx context.Context, key string) error {
	var out struct{}
	return p.ask(ctx, "/api/v1/delete", key, &out)
}

func (p *webPlayer) get(ctx context.Context, key string) ([]byte, bool, error) {
	var found struct{ Blocks int }
	if err := p.ask(ctx, "/api/v1/lookup", key, &found); err != nil {
		return nil, false, err
	}
	b, there, err := p.wirePlayer.get(ctx, key)
	if err == nil && there != (found.Blocks == 1) {
		err = fmt.Errorf("a lookup over HTTP finds %d of %s, a restore %v", found.Blocks, key, there)
	}
	return b, there, err
}

func (p *webPlayer) close() {
	p.c.CloseIdleConnections()
	p.wirePlayer.close()
}

// redisPlayer speaks RESP.
type redisPlayer struct{ c *redistest.Client }

// passes says which errors docs/reference/resp.md names as passing; the rest are none of RESP's but of the connection.
func passes(err error) error {
	if err == nil {
		return nil
	}
	var said redistest.Error
	if errors.As(err, &said) && !strings.HasPrefix(said.Error(), "TRYAGAIN") && !strings.HasPrefix(said.Error(), "OOM") && !strings.HasPrefix(said.Error(), "LOADING") {
		return err
	}
	return fmt.Errorf("%w: %w", errAgain, err)
}

func (p *redisPlayer) put(ctx context.Context, key string, value []byte) error {
	return passes(p.c.Set(ctx, key, value, 0))
}

func (p *redisPlayer) del(ctx context.Context, key string) error {
	_, err := p.c.Do(ctx, "DEL", key)
	return passes(err)
}

func (p *redisPlayer) get(ctx context.Context, key string) ([]byte, bool, error) {
	b, err := p.c.Get(ctx, key)
	if errors.Is(err, redistest.ErrNil) {
		return nil, false, nil
	}
	return b, err == nil, passes(err)
}

func (p *redisPlayer) close() { _ = p.c.Close() }
