//go:build linux

package apart

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/wire"
)

// job is what a client's process is told.
type job struct {
	Name  string
	Addr  string // of the node that it begins with
	Token string
	Seed  uint64
	Book  string   // file: written at the end, or where Check is set, read first
	Check bool     // only look, once, at everything
	Clear bool     // and delete it then
	Raw   bool     // serve a plain stream, and nothing else
	Links []string // addresses of those who do: measure
}

// What a client is told on its standard input, a line each. It answers each with a line.
const (
	toldStorm = "storm" // something will be wrong
	toldCalm  = "calm"  // nothing is, and what was asked a while ago has been carried out or never will be
	toldCheck = "check" // look at everything: what was acknowledged is there
)

// doubt is how long a request may be on its way when all is well again: a caller gives up within seconds, and the
// network delivers what it kept within twice the length of a cut.
const doubt = 30 * time.Second

const callTimeout = 30 * time.Second

// client is one process.
type client struct {
	*job
	r      *rand.Rand
	st     *replication.Store
	scopes map[string]skep.Scope
	book   book
	storm  bool
	counts map[string]int
}

// play does as it is told until its standard input ends. What is wrong it prints, and ends with 1.
func (j *job) play() error {
	if j.Raw {
		return sendRaw()
	}
	c := &client{job: j, r: rand.New(rand.NewPCG(j.Seed, 3)), scopes: map[string]skep.Scope{}, book: newBook(j.Name), counts: map[string]int{}}
	var err error
	if j.Check {
		if c.book, err = readBook(j.Book); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if c.st, err = replication.Connect(wire.Options{Addr: j.Addr, Token: j.Token, Name: j.Name, Log: log}); err != nil {
		return err
	}
	defer c.st.Close()
	if j.Check {
		if err := c.check(); err != nil || !j.Clear {
			return err
		}
		return c.clear()
	}
	told := make(chan string)
	go func() {
		defer close(told)
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			told <- s.Text()
		}
	}()
	if j.Links != nil {
		for what := range told {
			said, err := c.links(what)
			if err != nil {
				return err
			}
			fmt.Println(what, said)
		}
		return nil
	}
	for {
		select {
		case what, ok := <-told:
			if !ok {
				return c.book.write(j.Book)
			}
			if err := c.told(what); err != nil {
				return err
			}
			fmt.Println(what, c.said())
		default:
			if err := c.step(); err != nil {
				return err
			}
			time.Sleep(time.Duration(c.r.IntN(20)) * time.Millisecond) // others have their turn
		}
	}
}

// said is what was counted.
func (c *client) said() string { return strings.TrimPrefix(fmt.Sprint(c.counts), "map") }

func (c *client) told(what string) error {
	switch what {
	case toldStorm:
		c.storm = true
	case toldCalm:
		c.storm = false
		c.book.each(func(b *block) { b.Late, b.Undo = false, false })
	case toldCheck:
		return c.check()
	}
	return nil
}

// scope opens a namespace, as often as need be.
func (c *client) scope(ctx context.Context, space string) (skep.Scope, error) {
	if s, ok := c.scopes[space]; ok {
		return s, nil
	}
	spec := skep.NamespaceSpec{Tenant: tenant, Name: space, Chained: true, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}}
	if space == spaces[0] {
		spec.Class = skep.Durable
	}
	ns, err := skep.OpenNamespace(ctx, c.st, spec)
	if err != nil {
		return skep.Scope{}, err
	}
	c.scopes[space] = ns.Scope()
	return ns.Scope(), nil
}

// passes are the errors that a client of a cluster has to live with.
func passes(err error) bool {
	switch skep.KindOf(err) {
	case skep.Unavailable, skep.Overloaded, skep.Deadline:
		return true
	}
	return false
}

// met counts an error, and gives it back where it does not pass.
func (c *client) met(what string, err error) error {
	if err == nil {
		return nil
	}
	if !passes(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.counts[fmt.Sprint(what, " ", skep.KindOf(err))]++
	return nil
}

// step does one thing.
func (c *client) step() error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	x := c.book[c.r.IntN(len(c.book))]
	scope, err := c.scope(ctx, x.Space)
	if err != nil {
		return c.met("open", err)
	}
	switch op := c.r.IntN(20); {
	case op < 8:
		err = c.put(ctx, scope, x)
	case op < 11:
		err = c.remove(ctx, scope, x, c.r.IntN(chainBlocks))
	default:
		_, err = c.read(ctx, scope, x)
	}
	return err
}

func (c *client) put(ctx context.Context, scope skep.Scope, x *chain) error {
	from, to := 0, 0
	for from < chainBlocks-1 && x.Blocks[from].Acked && c.r.IntN(8) > 0 {
		from++
	}
	to = min(chainBlocks, from+1+c.r.IntN(8))
	q := &skep.PutRequest{Scope: scope, Depth: from}
	if from > 0 {
		q.Parent, q.Ancestors = &x.keys[from-1], x.keys[:from-1]
	}
	for i := from; i < to; i++ {
		x.Blocks[i].Maybe = true
		x.Blocks[i].Late = x.Blocks[i].Late || c.storm
		q.Blocks = append(q.Blocks, skep.Block{Key: x.keys[i], Parts: []skep.Part{{Bytes: payload(x.keys[i])}}})
	}
	res, err := c.st.Put(ctx, q)
	if err != nil {
		for i := from; i < to; i++ {
			x.Blocks[i].Late = true
		}
		return c.met("put", err)
	}
	for i, r := range res {
		k := &x.Blocks[from+i]
		switch {
		case r.Differs:
			return fmt.Errorf("%v: block %d has other bytes", x, from+i)
		case r.Outcome == skep.Declined:
			k.Late = true
			c.counts[fmt.Sprint("declined ", r.Reason)]++
		default:
			k.Acked = !k.Undo
			c.counts["blocks put"]++
		}
	}
	return nil
}

// remove deletes the rest of a chain, from a block on.
func (c *client) remove(ctx context.Context, scope skep.Scope, x *chain, from int) error {
	for i := from; i < chainBlocks; i++ {
		x.Blocks[i].Acked = false
	}
	_, err := c.st.Delete(ctx, scope, x.keys[from:])
	for i := from; i < chainBlocks; i++ {
		k := &x.Blocks[i]
		if err == nil && !k.Late {
			k.Maybe = false
		}
		k.Undo = k.Undo || c.storm || err != nil
	}
	if err == nil {
		c.counts["deletions"]++
	}
	return c.met("delete", err)
}

// read looks a chain up and restores what is found. Complete: all that was acknowledged as durable was read.
func (c *client) read(ctx context.Context, scope skep.Scope, x *chain) (complete bool, err error) {
	sure := 0
	for sure < chainBlocks && x.Blocks[sure].Acked && x.durable() {
		sure++
	}
	found, err := c.st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: x.keys})
	if err != nil {
		return false, c.met("lookup", err)
	}
	read := 0
	if found.Blocks > 0 {
		part := skep.Chain{Scope: scope, Keys: x.keys[:found.Blocks], Lease: found.Lease.ID}
		err = skep.Load(ctx, c.st, &skep.RestoreRequest{Chains: []skep.Chain{part}}, func(ch *skep.Chunk) error {
			if ch.Err != nil {
				return nil // a miss
			}
			if !bytes.Equal(ch.AppendTo(nil), payload(x.keys[ch.Block])) {
				return fmt.Errorf("%v: block %d: %w", x, ch.Block, errWrongBytes)
			}
			if ch.Block < sure {
				read++
			}
			return nil
		})
		_ = c.st.Release(ctx, found.Lease.ID)
		if errors.Is(err, errWrongBytes) {
			return false, err
		}
		if err := c.met("restore", err); err != nil {
			return false, err
		}
	}
	for i := range found.Blocks {
		if !x.Blocks[i].Maybe {
			return false, fmt.Errorf("%v: block %d was deleted, and is found", x, i)
		}
	}
	c.counts["blocks read"] += read
	c.counts["durable blocks missed"] += sure - read
	return err == nil && read == sure, nil
}

var errWrongBytes = errors.New("WRONG BYTES")

// check looks at every chain until all that was acknowledged is there.
func (c *client) check() error {
	for _, x := range c.book {
		for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			scope, err := c.scope(ctx, x.Space)
			complete := false
			if err == nil {
				complete, err = c.read(ctx, scope, x)
			} else {
				err = c.met("open", err)
			}
			cancel()
			if err != nil {
				return err
			}
			if complete {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("%v: acknowledged, and not found within %v when all is well: %+v; %s", x, patience, x.Blocks, c.said())
			}
		}
	}
	return nil
}

// clear deletes everything, as often as need be.
func (c *client) clear() error {
	for _, x := range c.book {
		for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			scope, err := c.scope(ctx, x.Space)
			if err == nil {
				_, err = c.st.Delete(ctx, scope, x.keys)
			}
			cancel()
			if err == nil {
				break
			}
			if !passes(err) || time.Now().After(end) {
				return fmt.Errorf("%v: deletion: %w", x, err)
			}
		}
	}
	return nil
}
