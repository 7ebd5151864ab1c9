// Package opening finds a store, or makes it: its directory, its catalog, and its drives.
//
// A drive is known by the id in its superblocks, not by its path. An open looks where it was named, or in the store's
// own directory, or where the catalog says that it lies outside (package places). A drive that is not found has a
// stand-in (device.Gone) that fails everything, so that the rest of the store need not know.
//
// Where there is no catalog there is nothing, or the beginnings of a store whose making was cut off (package making),
// or a store that has lost its catalog: that one is made anew from the drives (package rebuild). A store that could not
// be made leaves nothing behind that would keep the next try from it.
//
// What an Opening has found lasts as long as the store is open: which store it is, its limits, where its drives are.
package opening
