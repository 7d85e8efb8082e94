class Fp8Config:
    pass
