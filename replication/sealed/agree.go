package sealed

import (
	"context"
	"errors"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// The map is looked at every lookEvery, and sooner while something waits, after againEvery and then each time twice
// that.
const (
	lookEvery       = 500 * time.Millisecond
	againEvery      = 30 * time.Millisecond
	proposePatience = 10 * time.Second
	saidAfter       = 5 // looks in vain: nodes hear of a map one after another
)

// Agree has the nodes agree on what this one encrypts, and tells which tenants it lacks a key of, until ctx ends.
func (g *Gate) Agree(ctx context.Context) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	again := againEvery
	for {
		select {
		case <-wait.C:
		case <-g.wake:
			again = againEvery
		case <-ctx.Done():
			return
		}
		if g.look(ctx) {
			again = againEvery
			wait.Reset(lookEvery)
			continue
		}
		wait.Reset(again)
		again = min(2*again, lookEvery)
	}
}

// look takes the steps that can be taken. It says whether none is left.
func (g *Gate) look(ctx context.Context) (done bool) {
	j := g.joined.Load()
	f := g.now()
	if j == nil || f.by == nil {
		return false
	}
	lacking := g.LacksKeys()
	g.forget(f)
	for _, t := range lacking {
		g.say(t, "lacks", 1, func() {
			g.log.Warn("other nodes encrypt the blocks of a tenant and this node has no key of it: it takes none of them",
				"tenant", t, "next", "name the file with the key (encryption_key_file) in this node's settings and reload them")
		})
	}
	done = true
	for _, t := range g.waiting(f) {
		if err := g.step(ctx, j, t); err != nil {
			done = false
			g.say(t, kindOf(err), saidAfter, func() {
				g.log.Warn("blocks of a tenant are not taken yet: it is not agreed on that they are encrypted",
					"tenant", t, "error", err)
			})
			continue
		}
		g.log.Info("the nodes agree that a tenant's blocks are encrypted", "tenant", t)
	}
	return done
}

// step has a tenant with a key be Sealed.
func (g *Gate) step(ctx context.Context, j *joined, tenant string) error {
	ctx, cancel := context.WithTimeout(ctx, proposePatience)
	defer cancel()
	if f := g.now(); f.is[tenant] == clustermap.Plain {
		c := clustermap.Seal(tenant, clustermap.Begins)
		if _, err := f.by.Apply(c); err != nil { // what is refused is not written down by most voters first
			return err
		}
		if _, err := j.Propose(ctx, c); err != nil {
			return err
		}
	}
	f := g.now()
	if f.is[tenant] == clustermap.Plain {
		return &skep.Error{Op: "agree", Kind: skep.Conflict, Field: "encryption of tenant " + tenant,
			Value: "ended meanwhile"}
	}
	if n := j.Unheard(ctx, f.by.Epoch); n != nil {
		return &skep.Error{Op: "agree", Kind: skep.Unavailable, Field: "node " + n.Name,
			Value: "not known to have heard of it",
			Limit: "reached, or set down: it might take them in the clear"}
	}
	_, err := j.Propose(ctx, clustermap.Seal(tenant, clustermap.Sealed))
	return err
}

// kindOf tells errors apart that are worth telling of.
func kindOf(err error) string {
	var e *skep.Error
	if errors.As(err, &e) {
		return e.Kind.Error() + ": " + e.Field
	}
	return err.Error()
}

// say tells something of a tenant when it has been so that many times, and then no more.
func (g *Gate) say(tenant, what string, after int, tell func()) {
	g.mu.Lock()
	now := g.told[tenant]
	if now.what != what {
		now = said{what: what}
	}
	now.times++
	g.told[tenant] = now
	g.mu.Unlock()
	if now.times == after {
		tell()
	}
}

// forget forgets what was told of tenants of which nothing is agreed on, or all is.
func (g *Gate) forget(f *facts) {
	k := g.keys.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := range g.told {
		if !has(k.of, t) && f.state(t) == clustermap.Plain || has(k.of, t) && f.is[t] == clustermap.Sealed {
			delete(g.told, t)
		}
	}
}
