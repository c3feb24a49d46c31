class Feature:
    name: str
    enabled: bool

class Features(dict[str, Feature]): ...
