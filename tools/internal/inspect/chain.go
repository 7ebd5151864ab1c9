package inspect

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// Link is one key of a chain.
type Link struct {
	Position int    `json:"position"` // in the chain
	Key      string `json:"key"`      // in hexadecimal
	Stored   bool   `json:"stored"`   // there is a block of this key
	Fits     bool   `json:"fits"`     // at this depth, under the parent before it
	Problem  string `json:"problem"`  // why not
	Block    *Block `json:"block"`    // as in inspect block; null when not stored
}

// Chain is what is stored of a chain in one namespace.
type Chain struct {
	Store
	Namespace  uint32 `json:"namespace"`  // the one shown
	Keys       int    `json:"keys"`       // keys of the chain
	Restorable int    `json:"restorable"` // leading blocks that are stored in their place (blocks)
	Links      []Link `json:"links"`      // a key each
}

// where is a block in one room: keys of two namespaces or salts have nothing to do
// with each other.
type where struct {
	instance uint32
	tag      segment.SaltTag
	key      skep.Key
}

// Chain shows the chain that keys are, first block first, or, for one key, the chain
// that ends in it. Of several namespaces or salts that hold its last stored key the
// first is shown.
func (v *View) Chain(ctx context.Context, keys []skep.Key) (*Chain, error) {
	if len(keys) == 0 || len(keys) > skep.MaxChainKeys {
		return nil, skep.Invalidf("inspect chain", "keys", len(keys), "one or more")
	}
	root, err := v.store(ctx)
	if err != nil {
		return nil, err
	}
	devices, err := v.members(ctx)
	if err != nil {
		return nil, err
	}
	if len(keys) == 1 {
		if keys, err = v.ancestors(ctx, keys[0]); err != nil {
			return nil, err
		}
	}
	want := make(map[skep.Key]int, len(keys))
	for i, k := range keys {
		want[k] = i
	}
	found := map[where]*Block{}
	last, deepest := where{}, -1
	if err := v.scan(ctx, func(_ layout.Location, r *segment.Record) error {
		i, ok := want[r.Key]
		if !ok {
			return nil
		}
		b := blockOf(r, devices)
		at := where{r.Instance, r.SaltTag, r.Key}
		found[at] = &b
		if i > deepest {
			last, deepest = at, i
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if deepest < 0 {
		return nil, &skep.Error{Op: "inspect chain", Kind: skep.NotFound, Field: "keys", Value: len(keys), Limit: "at least one stored"}
	}
	c := &Chain{Store: root, Keys: len(keys), Links: []Link{}}
	whole := true
	for i, k := range keys {
		l := Link{Position: i, Key: k.String()}
		if b := found[where{last.instance, last.tag, k}]; b != nil {
			c.Namespace = b.Namespace
			l.Stored, l.Block = true, b
			parent := ""
			if i > 0 {
				parent = keys[i-1].String()
			}
			switch {
			case int(b.Depth) != i:
				l.Problem = "stored at another depth"
			case b.Parent != parent:
				l.Problem = "stored under another parent"
			default:
				l.Fits = true
			}
		} else {
			l.Problem = "not stored"
		}
		if whole = whole && l.Fits; whole {
			c.Restorable++
		}
		c.Links = append(c.Links, l)
	}
	return c, nil
}

// ancestors is the chain that ends in key, as far up as it is stored.
func (v *View) ancestors(ctx context.Context, key skep.Key) ([]skep.Key, error) {
	parents := map[where]skep.Key{}
	var from []where
	if err := v.scan(ctx, func(_ layout.Location, r *segment.Record) error {
		at := where{r.Instance, r.SaltTag, r.Key}
		if r.Parent != nil {
			parents[at] = *r.Parent
		}
		if r.Key == key {
			from = append(from, at)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if len(from) == 0 {
		return nil, &skep.Error{Op: "inspect chain", Kind: skep.NotFound, Field: "key", Value: key.Short()}
	}
	chain := []skep.Key{key}
	for at := from[0]; len(chain) <= skep.MaxDepth; {
		parent, ok := parents[at]
		if !ok {
			break
		}
		delete(parents, at) // so that a circle, which a hostile client can store, ends
		chain = append(chain, parent)
		at.key = parent
	}
	for i, j := 0, len(chain)-1; i < j; i, j = i+1, j-1 {
		chain[i], chain[j] = chain[j], chain[i]
	}
	return chain, nil
}
