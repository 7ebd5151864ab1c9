package hostile

import (
	"context"
	"fmt"
	"net"
)

// Honest is a client of RESP that stores and reads values of its own, beside players, and checks what it reads. It goes
// to several nodes of a cluster in turn: what it set at one it gets from another.
type Honest struct{ b *books }

// NewHonest begins one, and returns when it has made some calls.
//
// Errors: those of the first calls.
func NewHonest(nodes []net.Addr, seed uint64) (*Honest, error) {
	x := &roving{}
	for _, at := range nodes {
		c, err := dialRedis(at)
		if err != nil {
			_ = x.close()
			return nil, err
		}
		x.all = append(x.all, c)
	}
	h := &Honest{newBooks()}
	h.b.add("resp over tcp", x, seed)
	h.b.begin()
	h.b.warm()
	if err := h.Err(); err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

// Err says what went wrong so far.
func (h *Honest) Err() error { return h.b.err() }

// Pause returns when it is in no call; it begins none until resume is called.
func (h *Honest) Pause() (resume func()) { return h.b.pause() }

// Turn says how its calls went since the last.
func (h *Honest) Turn() string { return fmt.Sprint(h.b.turn()) }

// Check reads all that it stored.
//
// Errors: a value that is not what was acknowledged last. REQUIRES: Pause.
func (h *Honest) Check(ctx context.Context) error {
	for _, k := range h.b.clients {
		for key := range k.has {
			got, found, err := k.c.get(ctx, key)
			if err == nil && found {
				err = k.check(key, got)
			}
			if err != nil {
				return fmt.Errorf("honest %s: %w", k.name, err)
			}
		}
	}
	return nil
}

// Close ends it.
func (h *Honest) Close() error { return h.b.close() }

// roving asks one node after another.
type roving struct {
	all  []*redisClient
	turn int
}

func (x *roving) next() *redisClient {
	x.turn++
	return x.all[x.turn%len(x.all)]
}

func (x *roving) set(ctx context.Context, key string, value []byte) error {
	return x.next().set(ctx, key, value)
}

func (x *roving) get(ctx context.Context, key string) ([]byte, bool, error) {
	return x.next().get(ctx, key)
}

func (x *roving) close() (err error) {
	for _, c := range x.all {
		if e := c.close(); err == nil {
			err = e
		}
	}
	return err
}
