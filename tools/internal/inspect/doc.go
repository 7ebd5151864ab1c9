// Package inspect shows what a store holds, from its catalog and device files. It
// takes no lock and writes nothing, so that it works on a store another process has
// open; what it shows then is one moment, without the unsynced commits of the last.
//
// Cost: Groups, Namespaces, Keys, Block and Chain scan the block rows once, some 200 bytes a
// block; Ancestors also keeps about 100 bytes of memory for each block meanwhile.
package inspect
