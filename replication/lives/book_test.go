package lives

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// What a node calls a namespace no more, for it was deleted or the node began another life, is known for a while, and
// the book does not grow.
func TestNamesThatWereLeftAreForgotten(t *testing.T) {
	t.Parallel()
	b := NewBook()
	number := func(life, id int) *Number {
		return &Number{ID: skep.NamespaceID(id), Of: Life{Server: wire.ServerID{byte(life), byte(life >> 8)}}}
	}
	b.Put(1, nil, *number(0, 7), 1)
	for life := 1; life <= rememberLeft; life++ {
		b.Put(1, number(life-1, 7), *number(life, 7), 1)
	}
	require.EqualValues(t, 1, b.Get(1, *number(0, 7)))
	b.Put(1, number(rememberLeft, 7), *number(rememberLeft, 8), 2)
	require.Zero(t, b.Get(1, *number(0, 7)))
	require.EqualValues(t, 1, b.Get(1, *number(1, 7)))
	require.EqualValues(t, 2, b.Get(1, *number(rememberLeft, 8)))
	require.Zero(t, b.Get(2, *number(rememberLeft, 8)))
	b.Put(1, number(rememberLeft, 8), *number(rememberLeft, 8), 2)
	require.Equal(t, rememberLeft+1, b.Len())
	b.Leave(1, nil)
	b.Unlearn(2, Life{})
	require.Equal(t, rememberLeft+1, b.Len())
	b.Unlearn(1, number(rememberLeft, 8).Of)
	require.Equal(t, 2, b.Len())
}
