-- SHA-256 and its HMAC from the libcrypto that nginx itself is linked with.

local ffi = require "ffi"

ffi.cdef [[
const void *EVP_sha256(void);
unsigned char *HMAC(const void *evp_md, const void *key, int key_len, const unsigned char *data, size_t data_len,
                    unsigned char *md, unsigned int *md_len);
unsigned char *SHA256(const unsigned char *data, size_t data_len, unsigned char *md);
int CRYPTO_memcmp(const void *a, const void *b, size_t len);
]]

local M = {}

local digest = ffi.new("unsigned char[32]")

function M.hmac_sha256(key, data)
    if ffi.C.HMAC(ffi.C.EVP_sha256(), key, #key, data, #data, digest, nil) == nil then
        return nil
    end
    return ffi.string(digest, 32)
end

function M.sha256_hex(data)
    ffi.C.SHA256(data, #data, digest)
    return (ffi.string(digest, 32):gsub(".", function(byte)
        return ("%02x"):format(byte:byte())
    end))
end

-- Compares in a time that does not depend on where the two differ.
function M.equal(a, b)
    return #a == #b and ffi.C.CRYPTO_memcmp(a, b, #a) == 0
end

return M
