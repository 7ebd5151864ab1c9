package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// honest is a client that stores and reads values of its own.
type honest interface {
	set(ctx context.Context, key string, value []byte) error
	get(ctx context.Context, key string) (value []byte, found bool, err error)
	close() error
}

// errShed says that the server had no room and told so: the call can be made again.
var errShed = errors.New("told to try again")

// books are the honest clients and what they know.
type books struct {
	clients []*bookkeeper
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup
	running sync.RWMutex // held for writing: nobody calls
	bad     problems

	mu    sync.Mutex
	count tally
}

// tally is how calls went.
type tally struct {
	calls, missed, shed, failed int
	took                        []time.Duration
}

func (t tally) p99() time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	slices.Sort(t.took)
	return t.took[len(t.took)*99/100]
}

func (t tally) String() string {
	return fmt.Sprintf("%d calls, %d missed, %d shed, %d failed, p99 %v", t.calls, t.missed, t.shed, t.failed, t.p99())
}

// slower is an error when calls beside players took more than twice as long as before.
func slower(alone, beside tally) error {
	if a, b := alone.p99(), beside.p99(); b > 2*a {
		return fmt.Errorf("an honest client's p99 is %v beside hostile ones, and %v beside polite ones: more than twice", b, a)
	}
	return nil
}

// bookkeeper is one honest client. Values are made from key and version, so that what comes back is known for what it is.
type bookkeeper struct {
	name  string
	c     honest
	keeps bool              // it stores what it sets
	has   map[string]uint64 // version acknowledged last
	doubt map[string]uint64 // version whose fate is not known
	r     *rand.Rand
	next  uint64
}

func newBooks() *books {
	b := &books{}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// add has one more client, before begin.
func (b *books) add(name string, c honest, seed uint64) {
	b.clients = append(b.clients, &bookkeeper{name: name, c: c, keeps: name != HTTP, has: map[string]uint64{}, doubt: map[string]uint64{}, r: rand.New(rand.NewPCG(seed, uint64(len(b.clients))^1<<32))})
}

func openBooks(s *Server, seed uint64) (*books, error) {
	b := newBooks()
	var err error
	add := func(name string, c honest, e error) {
		if e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, e))
			return
		}
		b.add(name, c, seed)
	}
	for _, at := range s.Addrs[Resp] {
		c, e := dialRedis(at)
		add("resp over "+at.Network(), c, e)
	}
	for i, at := range s.Addrs[Wire] {
		o := wire.Options{Addr: at.String(), Token: TokenHonest, Conns: 1, Timeout: time.Minute, Strict: true, Memory: 32 << 20}
		if at.Network() == "unix" {
			o.Addr, o.SharedMemory = "unix:"+o.Addr, 16<<20
		}
		c, e := dialWire(o, i)
		add("wire over "+at.Network(), c, e)
	}
	add(HTTP, &webClient{at: s.Addrs[HTTP][0].String()}, nil)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.begin()
	return b, nil
}

// begin has every client call until close, or an error.
func (b *books) begin() {
	for _, k := range b.clients {
		b.wg.Go(func() {
			for b.ctx.Err() == nil {
				b.running.RLock()
				err := k.call(b)
				b.running.RUnlock()
				if err != nil {
					b.bad.add(fmt.Errorf("honest %s: %w", k.name, err))
					return
				}
			}
		})
	}
}

// pause returns when no honest client is in a call; none begins one until the function that it gives is called.
func (b *books) pause() (resume func()) {
	b.running.Lock()
	return b.running.Unlock
}

// warm waits until every client has made some calls.
func (b *books) warm() {
	for {
		b.mu.Lock()
		n := b.count.calls
		b.mu.Unlock()
		if n >= 20*len(b.clients) || b.bad.err() != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// turn gives what was counted and counts anew.
func (b *books) turn() tally {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.count
	b.count = tally{}
	return out
}

func (b *books) err() error { return b.bad.err() }

func (b *books) close() (err error) {
	b.stop()
	b.wg.Wait()
	for _, k := range b.clients {
		err = errors.Join(err, k.c.close())
	}
	return err
}

const (
	honestKeys = 24
	honestCall = time.Minute
	maxHonest  = 3 << 19
)

// call makes one call and checks its answer. An error is one that is not to be.
func (k *bookkeeper) call(b *books) error {
	key := fmt.Sprintf("%s/%d", k.name, k.r.IntN(honestKeys))
	set := k.r.IntN(3) == 0
	ctx, cancel := context.WithTimeout(context.Background(), honestCall)
	defer cancel()
	var err error
	var got []byte
	found := true
	size := k.size()
	if set {
		k.next++
		got = valueOf(key, k.next, size)
	}
	begin := time.Now()
	if set {
		err = k.c.set(ctx, key, got)
	} else {
		got, found, err = k.c.get(ctx, key)
	}
	took := time.Since(begin)
	b.mu.Lock()
	b.count.calls++
	switch {
	case errors.Is(err, errShed):
		b.count.shed++
	case err != nil:
		b.count.failed++
	case !found && k.keeps && k.has[key] != 0:
		b.count.missed++
	}
	b.count.took = append(b.count.took, took)
	b.mu.Unlock()
	switch {
	case set && err == nil:
		k.has[key] = k.next
		delete(k.doubt, key)
	case set:
		k.doubt[key] = k.next
	case err == nil && found:
		if err := k.check(key, got); err != nil {
			return err
		}
	}
	if errors.Is(err, errShed) {
		return nil
	}
	return err
}

func (k *bookkeeper) size() int {
	switch k.r.IntN(8) {
	case 0:
		return k.r.IntN(maxHonest)
	case 1, 2:
		return k.r.IntN(64 << 10)
	}
	return k.r.IntN(600)
}

// check says what is wrong with a value that was read.
func (k *bookkeeper) check(key string, got []byte) error {
	if len(got) < 8 {
		return fmt.Errorf("%s: %d bytes, of no value that was stored", key, len(got))
	}
	v := binary.LittleEndian.Uint64(got)
	if v != k.has[key] && v != k.doubt[key] {
		return fmt.Errorf("%s: version %d, acknowledged last was %d", key, v, k.has[key])
	}
	if want := valueOf(key, v, len(got)-len(valueOf(key, v, 0))); !bytes.Equal(want, got) {
		return fmt.Errorf("%s: wrong bytes in version %d", key, v)
	}
	return nil
}

// valueOf is the value of a key's version: its number, its length, Secret, and bytes that follow from all that.
func valueOf(key string, version uint64, size int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, version)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	b = append(append(b, Secret...), key...)
	var seed [32]byte
	copy(seed[:], key)
	binary.LittleEndian.PutUint64(seed[24:], version)
	n := len(b)
	b = append(b, make([]byte, size)...)
	_, _ = rand.NewChaCha8(seed).Read(b[n:])
	return b
}

// redisClient is a plain client of RESP.
type redisClient struct {
	c net.Conn
	r *bufio.Reader
}

func dialRedis(at net.Addr) (*redisClient, error) {
	c, err := net.Dial(at.Network(), at.String())
	if err != nil {
		return nil, err
	}
	x := &redisClient{c, bufio.NewReader(c)}
	if _, _, err := x.do(context.Background(), "AUTH", []byte(TokenHonest)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return x, nil
}

// Command is a command of RESP as clients send it.
func Command(name string, args ...[]byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n$%d\r\n%s\r\n", len(args)+1, len(name), name)
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n", len(a))
		b.Write(a)
		b.WriteString("\r\n")
	}
	return b.Bytes()
}

func (x *redisClient) do(ctx context.Context, name string, args ...[]byte) (value []byte, found bool, err error) {
	deadline, _ := ctx.Deadline()
	if err := x.c.SetDeadline(deadline); err != nil {
		return nil, false, err
	}
	if _, err := x.c.Write(Command(name, args...)); err != nil {
		return nil, false, err
	}
	line, err := x.r.ReadString('\n')
	if err != nil {
		return nil, false, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	switch {
	case strings.HasPrefix(line, "-TRYAGAIN"), strings.HasPrefix(line, "-OOM"):
		return nil, false, fmt.Errorf("%w: %s", errShed, line)
	case strings.HasPrefix(line, "-"):
		return nil, false, errors.New(line)
	case !strings.HasPrefix(line, "$"):
		return nil, true, nil
	}
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < 0 {
		return nil, false, err
	}
	value = make([]byte, n+2)
	_, err = io.ReadFull(x.r, value)
	return value[:n], true, err
}

func (x *redisClient) set(ctx context.Context, key string, value []byte) error {
	_, _, err := x.do(ctx, "SET", []byte(key), value)
	return err
}

func (x *redisClient) get(ctx context.Context, key string) ([]byte, bool, error) {
	return x.do(ctx, "GET", []byte(key))
}

func (x *redisClient) close() error { return x.c.Close() }

// wireClient keeps values in a namespace of its own.
type wireClient struct {
	*wire.Client
	space skep.NamespaceID
}

func dialWire(o wire.Options, n int) (*wireClient, error) {
	ctx, cancel := context.WithTimeout(context.Background(), honestCall)
	defer cancel()
	c, err := wire.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	info, err := c.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: HonestTenant, Name: fmt.Sprint("books/", n), Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &wireClient{c, info.ID}, nil
}

// refused is errShed for what the server had no room for.
func refused(err error) error {
	switch skep.KindOf(err) {
	case skep.Overloaded, skep.Full, skep.ReadOnly, skep.Admission, skep.NoMemory, skep.Quota:
		return fmt.Errorf("%w: %w", errShed, err)
	}
	return err
}

func (x *wireClient) set(ctx context.Context, key string, value []byte) error {
	res, err := x.Put(ctx, &skep.PutRequest{Scope: skep.Scope{Namespace: x.space}, Blocks: []skep.Block{{Key: skep.KeyOf([]byte(key)), Parts: []skep.Part{{Bytes: value}}}}})
	if err == nil && res[0].Outcome == skep.Declined {
		err = &skep.Error{Op: "put", Kind: res[0].Reason}
	}
	return refused(err)
}

func (x *wireClient) get(ctx context.Context, key string) (value []byte, found bool, err error) {
	deadline, _ := ctx.Deadline()
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: skep.Scope{Namespace: x.space}, Keys: []skep.Key{skep.KeyOf([]byte(key))}, Deadline: deadline}}}
	err = skep.Load(ctx, x, r, func(c *skep.Chunk) error {
		if c.Err == nil {
			value, found = c.AppendTo(value), true
		}
		return nil
	})
	if err != nil {
		return nil, false, refused(err)
	}
	return value, found, nil
}

func (x *wireClient) close() error { return x.Close() }

// webClient asks over HTTP how its tenant stands. It stores nothing.
type webClient struct {
	at string
	c  http.Client
}

func (x *webClient) ask(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+x.at+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+TokenHonest)
	res, err := x.c.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, res.Status, b)
	}
	if err == nil && bytes.Contains(b, []byte(`"`+HostileTenant+`"`)) {
		err = fmt.Errorf("%s tells of another tenant", path)
	}
	return err
}

func (x *webClient) set(ctx context.Context, _ string, _ []byte) error { return x.ask(ctx, "/healthz") }

func (x *webClient) get(ctx context.Context, _ string) ([]byte, bool, error) {
	return nil, false, x.ask(ctx, "/api/v1/namespaces")
}

func (x *webClient) close() error {
	x.c.CloseIdleConnections()
	return nil
}
