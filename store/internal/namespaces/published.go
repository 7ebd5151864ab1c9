package namespaces

import (
	"iter"
	"sync"
	"sync/atomic"
)

// published is a map whose readers never wait for who changes it.
type published[K comparable, V any] struct {
	m sync.Map
	n atomic.Int64
}

// get is the zero V where there is none.
func (p *published[K, V]) get(k K) (v V) {
	if x, ok := p.m.Load(k); ok {
		v = x.(V)
	}
	return v
}

func (p *published[K, V]) set(k K, v V) {
	if _, there := p.m.Swap(k, v); !there {
		p.n.Add(1)
	}
}

func (p *published[K, V]) delete(k K) {
	if _, there := p.m.LoadAndDelete(k); there {
		p.n.Add(-1)
	}
}

// all goes over the entries as they are met: others may change them meanwhile.
func (p *published[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		p.m.Range(func(k, v any) bool { return yield(k.(K), v.(V)) })
	}
}

func (p *published[K, V]) len() int { return int(p.n.Load()) }
