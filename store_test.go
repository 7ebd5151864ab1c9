package skep_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// wrapper is a Store in front of another.
type wrapper struct{ skep.Store }

func (w wrapper) Unwrap() skep.Store { return w.Store }

// closed is a wrapper that does not let itself be seen through.
type closed struct{ skep.Store }

type named struct {
	skep.UnsupportedStore
	name string
}

func TestAs(t *testing.T) {
	t.Parallel()
	in := &named{name: "inside"}
	for _, st := range []skep.Store{in, wrapper{in}, wrapper{wrapper{in}}} {
		found, ok := skep.As[*named](st)
		require.True(t, ok)
		require.Same(t, in, found)
	}
	first := &named{name: "first"}
	_, ok := skep.As[wrapper](wrapper{first})
	require.True(t, ok, "itself")
	for _, st := range []skep.Store{nil, skep.UnsupportedStore{}, wrapper{skep.UnsupportedStore{}}, wrapper{nil}, closed{in}, wrapper{closed{in}}} {
		found, ok := skep.As[*named](st)
		require.False(t, ok)
		require.Nil(t, found)
	}
}

// Every call of what can do nothing is refused by its name, but the end of a Store.
func TestUnsupportedIsSaidByName(t *testing.T) {
	t.Parallel()
	for _, x := range []any{skep.UnsupportedStore{}, skep.UnsupportedSession{}} {
		names := map[string]string{}
		v := reflect.ValueOf(x)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			if m.Name == "Close" && v.Type() == reflect.TypeFor[skep.UnsupportedStore]() {
				require.NoError(t, skep.UnsupportedStore{}.Close())
				continue
			}
			args := []reflect.Value{}
			for k := range v.Method(i).Type().NumIn() {
				args = append(args, reflect.Zero(v.Method(i).Type().In(k)))
			}
			out := v.Method(i).Call(args)
			err, _ := out[len(out)-1].Interface().(error)
			var e *skep.Error
			require.ErrorAs(t, err, &e, m.Name)
			require.Equal(t, skep.Unsupported, e.Kind, m.Name)
			require.NotEmpty(t, e.Op, m.Name)
			require.Empty(t, names[e.Op], "%s is said of %s too", e.Op, names[e.Op])
			names[e.Op] = m.Name
			for _, o := range out[:len(out)-1] {
				require.True(t, o.IsZero(), m.Name)
			}
		}
		require.NotEmpty(t, names)
	}
}
