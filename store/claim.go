package store

import (
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/places"
)

// Places finds the devices of the store in a directory.
type Places = places.Places

// PlacesOf is for the store id in dir, whose catalog says owner, if known.
func PlacesOf(dir string, id [16]byte, owner catalog.Owner, known bool) *Places {
	return places.Of(dir, id, owner, known)
}
