package locks

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Each lock has one place in the table, and leaves come last.
func TestOrder(t *testing.T) {
	t.Parallel()
	seen, leaf := map[reflect.Type]bool{}, false
	for _, l := range Order {
		typ := reflect.TypeOf(l.Name)
		assert.False(t, seen[typ], "%v is there twice", typ)
		assert.NotEmpty(t, l.What, "what %v guards", typ)
		assert.True(t, l.Leaf || !leaf, "%v comes after leaves", typ)
		seen[typ], leaf = true, l.Leaf
	}
}
