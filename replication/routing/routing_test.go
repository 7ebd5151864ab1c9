package routing

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
)

// chain is a prompt of n blocks whose first ones are those of a conversation.
func chain(conversation, n int) (keys []skep.Key) {
	for i := range n {
		keys = append(keys, skep.KeyOf(fmt.Appendf(nil, "%d/%d", conversation, i)))
	}
	return keys
}

func engines(n int) (list []Engine) {
	for i := range n {
		list = append(list, Engine{Name: fmt.Sprintf("engine-%d", i), Rate: 10000, Blocks: 1 << 12})
	}
	return list
}

func ask(keys []skep.Key, list []Engine) *Question {
	return &Question{Keys: keys, BlockTokens: 16, Engines: list}
}

func route(t *testing.T, r *Router, q *Question) Answer {
	t.Helper()
	a, err := r.Route(q)
	require.NoError(t, err)
	return a
}

// A conversation stays where it began, and finds there what it left; others have engines of their own.
func TestAConversationStays(t *testing.T) {
	t.Parallel()
	r, list := New(), engines(8)
	at, used := map[int]int{}, map[int]bool{}
	for turn := 1; turn <= 5; turn++ {
		for c := range 40 {
			a := route(t, r, ask(chain(c, 10*turn), list))
			require.Equal(t, 10*(turn-1), a.Held)
			require.Equal(t, Affinity, a.Way)
			if turn == 1 {
				at[c], used[a.Engine] = a.Engine, true
			}
			require.Equal(t, at[c], a.Engine)
		}
	}
	require.Len(t, used, 8)
}

// What is late where the prefix is goes to the other engine of the two, and to any other where both are late.
func TestWhatWouldBeLateGoesElsewhere(t *testing.T) {
	t.Parallel()
	r, list := New(), engines(8)
	q := ask(chain(1, 100), list)
	first := route(t, r, q)
	other := first.Choices[0] + first.Choices[1] - first.Engine
	require.NotEqual(t, first.Engine, other)

	list[first.Engine].Wait = time.Minute
	a := route(t, r, q)
	require.Equal(t, Answer{Engine: other, Expect: 160 * time.Millisecond, Choices: first.Choices, Way: Load}, a)

	list[other].Wait = 30 * time.Second
	a = route(t, r, q)
	require.Equal(t, Relief, a.Way)
	require.NotContains(t, a.Choices, a.Engine)

	for i := range list {
		list[i].Wait = time.Minute + time.Duration(i)
	}
	list[other].Wait = 50 * time.Second
	a = route(t, r, q)
	require.Equal(t, Answer{Engine: other, Held: 100, Expect: 50 * time.Second, Choices: first.Choices, Way: Load}, a,
		"all are late: it is where it is earliest")
}

// What the store has is loaded where that is quicker than computing it.
func TestWhatTheStoreHas(t *testing.T) {
	t.Parallel()
	list := engines(1)
	q := ask(chain(1, 1000), list) // 1.6 s to compute
	q.Goal = time.Minute
	for _, c := range []struct {
		stored int
		load   time.Duration
		want   time.Duration
	}{
		{0, 0, 1600 * time.Millisecond},
		{1000, 100 * time.Millisecond, 100 * time.Millisecond},
		{500, 100 * time.Millisecond, 900 * time.Millisecond},
		{1000, time.Hour, 1600 * time.Millisecond},
	} {
		q.Stored, q.Load = c.stored, c.load
		require.Equal(t, c.want, route(t, New(), q).Expect)
	}
	r := New()
	q.Stored, q.Load, q.Keys = 0, 0, chain(1, 400)
	route(t, r, q)
	q.Stored, q.Load, q.Keys = 1000, 100*time.Millisecond, chain(1, 1000)
	a := route(t, r, q)
	require.Equal(t, 400, a.Held)
	require.Equal(t, 60*time.Millisecond, a.Expect, "what the engine has is not loaded")
}

// An engine that is new takes anchors from all others, and none goes between those.
func TestANewEngineMovesItsShareAlone(t *testing.T) {
	t.Parallel()
	before, after := engines(8), engines(9)
	moved, firsts := 0, make([]int, 9)
	for i := range 9000 {
		anchor := rand.New(rand.NewPCG(1, uint64(i))).Uint64()
		a, b := Draws(anchor, before), Draws(anchor, after)
		require.NotEqual(t, a[0], a[1])
		firsts[b[0]]++
		switch {
		case b[0] == 8:
			require.Equal(t, a[0], b[1])
			moved++
		case b[1] == 8:
			require.Equal(t, a[0], b[0])
			moved++
		default:
			require.Equal(t, a, b)
		}
	}
	require.InDelta(t, 2.0/9, float64(moved)/9000, 0.03)
	for _, n := range firsts {
		require.InDelta(t, 1000, n, 150)
	}
}

// Everybody's prompt begins with the same blocks. Its requests have more than two engines all the same, so that all
// are used when there is enough to do, and a conversation's next request finds the one before it.
func TestASystemPromptOfAll(t *testing.T) {
	t.Parallel()
	r, list := New(), engines(8)
	const rounds, conversations, every = 4, 1000, 4 * time.Millisecond
	sent, found := make([]int, 8), 0
	free, prompt, now := make([]time.Duration, 8), chain(0, 24), time.Duration(0)
	for range rounds {
		for c := 1; c <= conversations; c++ {
			now += every
			for i := range list {
				list[i].Wait = max(0, free[i]-now)
			}
			q := ask(append(prompt[:24:24], chain(c, 16)...), list)
			a := route(t, r, q)
			free[a.Engine] = now + a.Expect
			sent[a.Engine]++
			if a.Held == len(q.Keys) {
				found++
			}
		}
	}
	for _, n := range sent {
		require.Greater(t, n, rounds*conversations/8/2, "%v", sent)
	}
	require.Greater(t, found, rounds*conversations/2)
}

// Engines of one owner are not those of another.
func TestOwnersShareNothing(t *testing.T) {
	t.Parallel()
	r, list := New(), engines(1)
	q := ask(chain(1, 10), list)
	q.Owner = "a"
	route(t, r, q)
	require.Equal(t, 10, route(t, r, q).Held)
	q.Owner = "b"
	require.Zero(t, route(t, r, q).Held)
}

// An owner with very many engines has his own forgotten, and no other's.
func TestManyEnginesOfAnOwner(t *testing.T) {
	t.Parallel()
	r, q := New(), ask(chain(1, 10), engines(1))
	q.Owner = "modest"
	route(t, r, q)
	for i := range 2 * MaxKnown {
		greedy := ask(chain(i, 1), []Engine{{Name: fmt.Sprint(i)}})
		greedy.Owner = "greedy"
		route(t, r, greedy)
	}
	require.Len(t, r.held.of, MaxKnown)
	require.Equal(t, 10, route(t, r, q).Held)
}

// What a Router remembers is bounded, whatever it is asked.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	r := New()
	for i := range MaxKnown * 2 {
		e := []Engine{{Name: fmt.Sprint(i), Blocks: math.MaxInt}}
		route(t, r, ask(chain(i, 5000), e))
		require.LessOrEqual(t, len(r.held.of), MaxKnown)
		require.LessOrEqual(t, r.held.blocks, MaxBlocks)
	}
	n := 0
	for _, e := range r.held.of {
		n += len(e.young) + len(e.old)
	}
	require.Equal(t, n, r.held.blocks)
	for i := range 3 * halvedAt {
		route(t, r, ask(chain(i%7, 1<<6), engines(2)))
		require.LessOrEqual(t, len(r.hot.counts), 7*halvedAt)
	}
	small := []Engine{{Name: "small", Blocks: 100}}
	route(t, r, ask(chain(1, 5000), small))
	require.LessOrEqual(t, route(t, r, ask(chain(1, 5000), small)).Held, 100)
}

// The same questions have the same answers, and each is the better one of what there was to choose from.
func TestRandomQuestions(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(drawn.Seed(t), 0))
	a, b := New(), New()
	for range 2000 {
		list := engines(1 + rnd.IntN(MaxEngines))
		for i := range list {
			list[i].Wait = time.Duration(rnd.Int64N(int64(4 * time.Second)))
			list[i].Rate = float64(rnd.IntN(3)) * 1000
			list[i].Blocks = rnd.IntN(3) * 50
		}
		q := ask(chain(rnd.IntN(20), 1+rnd.IntN(60)), list)
		q.Stored = rnd.IntN(len(q.Keys) + 1)
		q.Load = time.Duration(rnd.Int64N(int64(time.Second)))
		q.Tokens = rnd.IntN(2) * rnd.IntN(2000)
		x, y := route(t, a, q), route(t, b, q)
		require.Equal(t, x, y)
		require.GreaterOrEqual(t, x.Expect, list[x.Engine].Wait)
		if x.Expect > DefaultGoal {
			require.Contains(t, []Way{Load, Relief}, x.Way)
		}
		if x.Way != Relief {
			require.Contains(t, x.Choices, x.Engine)
		}
	}
}

func TestQuestionsThatAreWrong(t *testing.T) {
	t.Parallel()
	for field, spoil := range map[string]func(*Question){
		"keys":                 func(q *Question) { q.Keys = nil },
		"block tokens":         func(q *Question) { q.BlockTokens = 0 },
		"tokens":               func(q *Question) { q.Tokens = -1 },
		"stored blocks":        func(q *Question) { q.Stored = 3 },
		"load":                 func(q *Question) { q.Load = -1 },
		"goal":                 func(q *Question) { q.Goal = -1 },
		"engines":              func(q *Question) { q.Engines = engines(MaxEngines + 1) },
		"engine's name, bytes": func(q *Question) { q.Engines[0].Name = "" },
		"engine":               func(q *Question) { q.Engines[1].Name = q.Engines[0].Name },
		"wait":                 func(q *Question) { q.Engines[1].Wait = -1 },
		"tokens a second":      func(q *Question) { q.Engines[1].Rate = math.NaN() },
		"blocks of an engine":  func(q *Question) { q.Engines[1].Blocks = -1 },
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			q, r := ask(chain(1, 2), engines(2)), New()
			spoil(q)
			_, err := r.Route(q)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, skep.Invalid, e.Kind)
			require.Equal(t, field, e.Field)
			require.Empty(t, r.held.of)
			require.Zero(t, r.hot.total)
		})
	}
}

func BenchmarkRoute(b *testing.B) {
	r, list := New(), engines(8)
	var prompts [][]skep.Key
	for i := range 64 {
		keys := make([]skep.Key, 2000)
		for j := range keys {
			binary.LittleEndian.PutUint64(keys[j][:], uint64(i)<<32|uint64(j))
		}
		prompts = append(prompts, keys)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := r.Route(ask(prompts[i%64], list)); err != nil {
			b.Fatal(err)
		}
	}
}
