-- Rises when another connection, of this process or of any other, has committed. Reads shared memory, not the file.
PRAGMA data_version;
